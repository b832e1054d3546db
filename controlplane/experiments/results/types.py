"""The results of an experiment as they are stored, sent and shown. None is unknown, or infinite for a difference."""

from typing import Any, Literal, TypedDict

Answer = Literal["pass", "fail", "inconclusive"]
Overall = Literal["pass", "fail", "inconclusive", "none"]


class Interval(TypedDict):
    """A difference from a baseline in the unit of the metric, its interval and what it shows."""

    difference: float | None
    relative: float | None
    low: float | None
    high: float | None
    verdict: str


DifferenceRow = TypedDict(
    "DifferenceRow",
    {
        "arm": str,
        "baseline": str,
        "class": str,
        "metric": str,
        "difference": float | None,
        "reference": float | None,  # value of the baseline
        "relative": float | None,
        "low": float | None,
        "high": float | None,
        "n": int,
        "verdict": str,
    },
)

ExpectationRow = TypedDict(
    "ExpectationRow",
    {
        "arm": str,
        "class": str,
        "metric": str,
        "relative_to": str,  # baseline; empty for a limit on the value itself
        "limits": str,  # in words
        "min_ratio": float | None,
        "max_ratio": float | None,
        "value": float | None,
        "baseline_value": float | None,
        "ratio": float | None,
        "low": float | None,
        "high": float | None,
        "confidence": float | None,
        "level": float | None,
        "n": int | None,
        "needed_n": int | None,  # requests that would decide it
        "verdict": Answer,
        "passed": bool,
    },
)


class Ecdf(TypedDict):
    ms: list[float]
    share: list[float]
    n: int


ClassResults = dict[str, float | None]  # by key: the metrics of METRICS, and counts


class WholeRunResults(TypedDict):
    """Of one run, or of several together."""

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
    values: dict[str, str]  # by arm


class EngineModelFacts(TypedDict):
    basis: str
    about: str
    cautions: list[str]
    expected: dict[str, float | None] | None


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


class Results(TypedDict):
    schema: int
    experiment: ExperimentHead
    mode: str
    twin: EngineModelFacts | None  # None for a replay
    time_scale: float
    time: str
    partial: bool
    classes: list[str]
    metrics: list[MetricHead]
    arms: list[ArmResults]
    differing: dict[str, list[DifferingSetting]]  # policy, fleet
    slo: dict[str, dict[str, float]]
    best: dict[str, dict[str, str]]  # class → metric → arm
    best_or_tied: dict[str, dict[str, list[str]]]
    differences: list[DifferenceRow]
    ecdf: dict[str, dict[str, dict[str, Ecdf]]]  # class → latency → arm
    expectations: list[ExpectationRow]
    verdict: Overall
    warnings: list[str]
