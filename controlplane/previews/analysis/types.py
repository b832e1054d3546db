"""The result of a preview as it is stored, sent and shown. Times in ms, shares 0–1; None is unknown."""

from datetime import datetime
from typing import Any, NotRequired, TypedDict


class MetricEffect(TypedDict):
    """One quantile of one latency, over the requests answered under both versions."""

    metric: str
    live: float | None
    draft: float | None
    difference: float | None  # draft − live
    relative: float | None
    low: float | None  # of the 95 % interval
    high: float | None
    n: int
    verdict: str


class ClassEffect(TypedDict):
    n: int
    metrics: list[MetricEffect]


class DecisionCount(TypedDict):
    decisions: int  # that the draft would change
    of: int


class ChangedDecisions(DecisionCount):
    share: float
    low: float  # of the 95 % interval
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
    share: float
    requests: int
    duration_s: float
    guards: list[dict[str, Any]]  # GuardFinding.as_dict, and the truth


class Saving(TypedDict):
    """A day at the load of the preview; negative: the draft computes more."""

    new_tokens: int
    gpu_hours: float
    dollars: float | None  # None for instances without GPUs


class Effect(TypedDict):
    """What is not required is missing in previews of earlier versions."""

    changed: ChangedDecisions
    instances: list[InstanceRequests]
    classes: dict[str, ClassEffect]
    refused: CountPair
    hit_share: ValuePair
    kv_usage: ValuePair
    new_tokens_per_s: NotRequired[ValuePair]
    requests_per_s: NotRequired[float | None]
    canary: NotRequired[CanaryEffect]
    saving: NotRequired[Saving | None]


class Deviation(TypedDict):
    """Medians of the twin and of the fleet, and the median ratio minus one."""

    metric: str
    measured: float
    twin: float
    relative: float
    n: int
    since: float  # Unix s
    until: float


class PreviewTrace(TypedDict):
    name: str
    source: str | None
    requests: int | None
    played: int | None
    first_at: float | None  # Unix s
    last_at: float | None
    age_s: float | None  # None for a trace that was not recorded


class PreviewTwin(TypedDict):
    basis: str
    about: str
    expected: dict[str, float | None] | None  # ExpectedError.as_dict
    deviation: Deviation | None


class Caution(TypedDict):
    code: str
    text: str


class PreviewView(TypedDict):
    """A preview as in the API."""

    id: int
    policy: str
    live_version: int
    draft_revision: int
    draft_sha256: str
    pool: str
    status: str
    done: int
    total: int
    left_s: float | None
    cause: str
    actor: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    cached: bool
    seeds: list[int]
    trace: PreviewTrace
    twin: PreviewTwin
    trust: list[Caution]
    first_result: Effect | None
    result: Effect | None
