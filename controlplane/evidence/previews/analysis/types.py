"""The result of a preview in the form in which it is stored, sent and shown. Times in ms, shares 0–1; None is
unknown."""

from datetime import datetime
from typing import Annotated, Any

from typing_extensions import TypedDict

from controlplane.common.description import Description
from controlplane.evidence.experiments.results.types import Interval, JobStatus
from controlplane.evidence.twin.expected_error import ExpectedError


class MetricEffect(Interval):
    """One quantile of one latency, over the requests answered under both versions."""

    metric: Annotated[str, Description("For example ttft_p90_ms")]
    live: float | None
    draft: float | None
    n: int


class ClassEffect(TypedDict):
    n: int
    metrics: list[MetricEffect]


class DecisionCount(TypedDict):
    decisions: Annotated[int, Description("Decisions that the draft would change")]
    of: int


class ChangedDecisions(DecisionCount):
    share: float
    low: Annotated[float, Description("Of the 95 % interval (Wilson)")]
    high: float
    classes: dict[str, DecisionCount]


class CountPair(TypedDict):
    live: int
    draft: int


class InstanceRequests(CountPair):
    id: str


class ValuePair(TypedDict):
    live: float | None
    draft: float | None


class CanaryEffect(TypedDict):
    share: Annotated[float, Description("0–1 of the sessions, decided by the draft")]
    requests: int
    duration_s: float
    guards: Annotated[
        list[dict[str, Any]],  # GuardFinding.as_dict, and the true effect
        Description("What the default guards of a delivery find, as in its looks; `truth` is what the whole pool sees"),
    ]


class Saving(TypedDict):
    """Savings per day at the load of the preview; negative: the draft computes more."""

    new_tokens: Annotated[
        int, Description("Prompt tokens that the draft finds in caches and the live version computes")
    ]
    low: Annotated[float | None, Description("Lower end of the 95 % interval of new_tokens; null if there is none")]
    high: float | None
    gpu_hours: Annotated[float, Description("GPU-hours of computing these tokens")]
    dollars: Annotated[float | None, Description("At the price of a GPU-hour; null for instances without GPUs")]


class Bounds(TypedDict):
    low: float
    high: float


class DraftEffect(TypedDict):
    """The effect of a draft; fields that are missing in previews of earlier versions are null."""

    changed: ChangedDecisions
    instances: list[InstanceRequests]
    classes: Annotated[dict[str, ClassEffect], Description("all, and each class as the live version assigns it")]
    refused: CountPair
    hit_share: Annotated[ValuePair, Description("Cached share of the prompt tokens, 0–1")]
    kv_usage: Annotated[ValuePair, Description("Mean over instances and time, 0–1")]
    new_tokens_per_s: Annotated[ValuePair | None, Description("Prompt tokens to compute")]
    saved_tokens_per_s: Annotated[
        Bounds | None, Description("95 % interval of the prompt tokens that only the live version computes, by session")
    ]
    requests_per_s: Annotated[float | None, Description("Sent")]
    canary: Annotated[CanaryEffect | None, Description("Of the first seed")]
    saving: Annotated[Saving | None, Description("null where it is unknown")]


class Deviation(TypedDict):
    metric: str
    measured: Annotated[float, Description("Median measured by routers, ms")]
    twin: Annotated[float, Description("Median of the same requests in the twin with the live version, ms")]
    relative: Annotated[float, Description("Median ratio of twin to measurement, minus one: 0.1 means 10 % too slow")]
    n: int
    since: Annotated[float, Description("Unix s")]
    until: float


class PlayedTrace(TypedDict):
    name: str
    source: Annotated[str | None, Description("recorded, built-in, upload or folder")]
    requests: Annotated[int | None, Description("Available requests")]
    played: int | None
    first_at: Annotated[
        float | None, Description("Time of the first recorded request, Unix seconds; null for other traces")
    ]
    last_at: float | None
    age_s: Annotated[float | None, Description("Seconds since the last recorded request")]


class PreviewTwin(TypedDict):
    basis: Annotated[str, Description("profile, transferred, calibrated, or empty before the computation")]
    about: Annotated[str, Description("Source of the engines' constants")]
    expected: Annotated[ExpectedError | None, Description("null before the computation")]
    deviation: Annotated[Deviation | None, Description("null when too few of the requests were measured")]


class Caution(TypedDict):
    code: Annotated[str, Description("For example trace_old, few_requests, not_recorded, twin_off")]
    text: str


class PolicyJobView(TypedDict):
    """The fields common to previews and tunings (PolicyJob)."""

    id: int
    policy: str
    live_version: int
    pool: str
    status: JobStatus
    done: int
    cause: str
    actor: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    trace: PlayedTrace


class PreviewView(PolicyJobView):
    """A preview as in the API."""

    draft_revision: int
    draft_sha256: str
    total: Annotated[
        int,
        Description("Requests to simulate: live and draft, every seed, and a canary"),
    ]
    left_s: Annotated[float | None, Description("Seconds until it is done, by the pace so far; null unless it runs")]
    cached: Annotated[bool, Description("The last request found it already computed")]
    seeds: list[int]
    twin: PreviewTwin
    trust: Annotated[list[Caution], Description("Cautions; empty: none")]
    first_result: Annotated[
        DraftEffect | None,
        Description("Result of the first requests, later of all; until the preview is done, failed or was cancelled"),
    ]
    result: Annotated[DraftEffect | None, Description("null until it is done")]
