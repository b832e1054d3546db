"""The results of an experiment in the form in which they are stored, sent and shown. None means unknown or, for a
difference, infinite. Times in ms are on the engine's clock in a replay, and in virtual time in the twin.
"""

from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from controlplane.common.description import Description
from controlplane.evidence.experiments.results.statistics.stats import Verdict
from controlplane.evidence.twin.expected_error import Basis, ExpectedError

ExpectationVerdict = Literal["pass", "fail", "inconclusive"]
Overall = Literal["pass", "fail", "inconclusive", "none"]
JobStatus = Literal["queued", "running", "done", "failed", "cancelled"]


class DifferenceBounds(TypedDict):
    """A difference from a baseline in the metric's unit, its interval and the conclusion."""

    difference: Annotated[float | None, Description("Difference from the baseline, over the requests that both have")]
    low: Annotated[float | None, Description("Of the 95 % interval")]
    high: float | None
    verdict: Verdict


class Interval(DifferenceBounds):
    relative: float | None
    relative_low: NotRequired[
        Annotated[
            float | None,
            Description(
                "Interval of the ratio, minus one, from its logarithm: never below −1. Null at an infinite end and "
                "beside a zero; it is absent from results of earlier versions, as is left_out"
            ),
        ]
    ]
    relative_high: NotRequired[float | None]


OfClass = TypedDict("OfClass", {"class": str})


class DifferenceRow(Interval, OfClass):
    arm: str
    baseline: str
    metric: str
    reference: Annotated[
        float | None,
        Description(
            "Value of the baseline over these n requests, the same in every arm; with the difference, the arm's"
        ),
    ]
    n: int
    left_out: NotRequired[
        Annotated[int, Description("Requests of the class that only some arms have, left out of both levels")]
    ]


ExpectationRow = TypedDict(
    "ExpectationRow",
    {
        "arm": str,
        "class": str,
        "metric": str,
        "relative_to": Annotated[str, Description("Baseline of the ratio; empty for limits on the value")],
        "limits": Annotated[str, Description("In words")],
        "min_ratio": float | None,
        "max_ratio": float | None,
        "value": Annotated[
            float | None, Description("Null when unknown, or when the quantile falls on unanswered requests")
        ],
        "baseline_value": float | None,
        "ratio": float | None,
        "low": Annotated[float | None, Description("Interval of the ratio, or of the value; null at an infinite end")],
        "high": float | None,
        "confidence": Annotated[
            float | None, Description("Confidence as requested; null: only the value was compared")
        ],
        "level": Annotated[float | None, Description("Confidence of this interval after Holm's method")],
        "n": Annotated[int | None, Description("Requests behind the interval")],
        "needed_n": Annotated[
            int | None, Description("Requests needed to decide an inconclusive verdict; null: no number suffices")
        ],
        "verdict": ExpectationVerdict,
        "passed": bool,
    },
)


class Ecdf(TypedDict):
    ms: list[float]
    share: list[float]
    n: int


ClassResults = dict[str, int | float | None]  # metrics of METRICS, and counts, by key


class WholeRunResults(TypedDict):
    """Results of one whole run, or of several together."""

    classes: dict[str, ClassResults]
    balance: float | None
    prompt_tokens_by_instance: dict[str, int]
    output_tokens_per_s: float | None
    routed_classes: dict[str, int]
    policy_versions: list[str]
    came_at_once: int
    late_wall_p99_ms: float | None


class RunResults(TypedDict):
    id: int
    seed: int
    status: str
    cause: str
    done: int
    total: int
    warnings: list[str]
    facts: Any  # RunFacts
    balance: float | None
    output_tokens_per_s: float | None
    prompt_tokens_by_instance: dict[str, int]
    all: ClassResults


class ArmResults(WholeRunResults):
    name: str
    policy: str
    version: int
    strategy: str
    overrides: dict[str, Any]
    sha256: str
    fleet: Any  # FleetChanges
    tokens_per_gpu_s: float | None
    dollars_per_million: float | None
    partial: bool
    warnings: list[str]
    runs: list[RunResults]


class DifferingSetting(TypedDict):
    path: str
    title: str
    unit: str
    values: Annotated[dict[str, str], Description("By arm")]


class DifferingSettings(TypedDict):
    """Settings in which the arms differ."""

    policy: list[DifferingSetting]
    fleet: list[DifferingSetting]


class EngineModelFacts(TypedDict):
    basis: Basis
    about: Annotated[str, Description("Source of the constants")]
    cautions: Annotated[
        list[str],
        Description("Parts of the pool that the twin does not model, and doubts about its constants"),
    ]
    expected: Annotated[ExpectedError | None, Description("null in results of earlier versions")]


class MetricHead(TypedDict):
    key: str
    title: str
    unit: str
    better: str
    per_class: bool


class ExperimentHead(TypedDict):
    id: int
    name: str
    status: str
    cause: str


class ExperimentResults(TypedDict):
    """Results in the form in which the page shows them."""

    schema: int
    experiment: ExperimentHead
    mode: Annotated[str, Description("replay, or twin: simulated")]
    twin: Annotated[
        EngineModelFacts | None,
        Description("The engine model; null for a replay and until the first run has begun"),
    ]
    time_scale: float
    time: str
    partial: Annotated[bool, Description("Some run did not finish; its results cover the requests that did")]
    classes: list[str]
    metrics: list[MetricHead]
    arms: list[ArmResults]
    differing: DifferingSettings
    slo: dict[str, dict[str, float]]
    best: Annotated[
        dict[str, dict[str, str]],
        Description(
            "class → metric → the arm that is better than each other one by its interval; none by `hit_ratio`, "
            "which counts transferred tokens, too"
        ),
    ]
    best_or_tied: Annotated[
        dict[str, dict[str, list[str]]],
        Description("class → metric → arms that no other one is better than; none by `hit_ratio`"),
    ]
    differences: Annotated[
        list[DifferenceRow],
        Description(
            "arm − baseline over all paired requests; empty until the experiment has ended. "
            "A null is infinite: the quantile falls on unanswered requests"
        ),
    ]
    ecdf: Annotated[dict[str, dict[str, dict[str, Ecdf]]], Description("class → latency → arm")]
    expectations: list[ExpectationRow]
    verdict: Overall
    warnings: list[str]
