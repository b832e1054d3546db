"""Reports of the control plane's own processes to each other and to the pages. Pure."""

from msgspec import Struct

from router.contract.redis.codec import RedisValue
from router.contract.redis.staleness import STEP_LATE_PERIODS, STEP_LATE_S


class NodeReport(Struct, frozen=True, kw_only=True):
    name: str
    last_seen: float | None  # Unix s
    missed_at: float | None  # Unix s, when it stopped reporting; None while it reports


class NodesValue(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:nodes, written by Celery."""

    at: float  # Unix s
    nodes: tuple[NodeReport, ...]


class SideLoad(Struct, frozen=True, kw_only=True):
    """The prefill or the decode instances of a pool."""

    instances: int
    work: float  # busy instances: 0.5 is one instance that is busy half of the time, or half full
    waiting: float = 0.0  # requests, summed over its instances
    kv: float | None = None  # mean KV usage 0–1; None: no instance reports it


class LoadPoint(Struct, frozen=True, kw_only=True):
    at: float  # Unix s
    ready: int  # instances
    running: float  # requests, summed over all instances, deferred ones included
    waiting: float  # requests that wait for capacity, summed over all instances
    kv: float | None = None  # mean KV usage 0–1; None: no instance reports it
    ttft_p90_ms: dict[str, float] = {}  # by class, over the last minute
    answers_per_s: float = 0.0  # over the last minute
    held: int = 0  # requests waiting in routers
    prefill: SideLoad | None = None  # None if the pool has no separate prefill and decode instances
    decode: SideLoad | None = None


class ScalingAdvice(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:scaling:<pool>, written by Celery, expires: the autoscaler's last step."""

    pool: str
    at: float  # Unix s
    changed_at: float  # Unix s, when `replicas` last changed
    replicas: int
    mode: str  # advisory or automatic
    advised: int  # replicas
    why: str
    prefills: int | None = None  # prefill replicas; None: not scaled separately
    advised_prefills: int | None = None  # number of advised replicas that prefill
    saturation: float | None = None  # highest measure relative to its target; None if nothing is measured
    balance: str = ""  # a sentence about the balance of prefill and decode instances
    points: tuple[LoadPoint, ...] = ()

    @property
    def size(self) -> str:
        return _size(self.replicas, self.prefills)

    @property
    def advised_size(self) -> str:
        return _size(self.advised, self.advised_prefills)


def _size(replicas: int, prefills: int | None) -> str:
    return f"{replicas}" if prefills is None else f"{replicas} ({prefills}P{replicas - prefills}D)"


class WorkerPresence(RedisValue, tag=1, frozen=True, kw_only=True):
    """weir:worker:<name>, written by each Celery worker every 2 s; expires after WORKER_TTL_S."""

    name: str
    at: float  # Unix s
    started_at: float  # Unix s
    pid: int
    queues: tuple[str, ...]


class StepReport(RedisValue, tag=1, frozen=True, kw_only=True):
    """Hash weir:steps, a field for each step, written by the control worker that runs it. While the lease cannot be
    kept, only the step that keeps it reports."""

    at: float  # Unix s, end of the latest success, or this worker's start of the step
    every_s: float
    took_s: float
    what: str  # description for people
    worker: str
    error: str = ""  # error of the latest run; empty after success

    @property
    def late_after_s(self) -> float:
        return max(STEP_LATE_S, STEP_LATE_PERIODS * self.every_s)

    def is_late(self, now: float) -> bool:
        return now - self.at > self.late_after_s


class FleetEvent(RedisValue, tag=1, frozen=True, kw_only=True):
    """Stream weir:events, field e, written by web and Celery: a line for the ticker and the charts."""

    at: float  # Unix s
    kind: str
    subject: str
    text: str
    actor: str = ""  # empty: the control plane itself
    pools: tuple[str, ...] = ()  # affected pools; empty: the whole fleet
    version: int = 0  # configuration version whose rollout begins or ends; 0: none
