"""A dashboard frame as it is published, stored and shown. Times are Unix seconds, latencies ms, KV shares 0–1; None
is unknown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict, cast

from router.contract.values import sketch
from router.contract.values.json_value import Json

Columns = dict[str, list[Any]]  # one list per field, one entry per row


@dataclass(frozen=True, slots=True)
class LatencyMetric:
    key: Literal["ttft", "tpot"]  # name of the sketch in a router's Window and in frames
    count: Literal["ttft_n", "tpot_n"]  # name of the number of measurements in frames
    label: str
    exported: str  # name on /metrics


LATENCIES = (
    LatencyMetric("ttft", "ttft_n", "TTFT", "weir_class_ttft_seconds"),
    LatencyMetric("tpot", "tpot_n", "TPOT", "weir_class_tpot_seconds"),
)
ALL_POOLS = "*"  # key of class metrics over all pools; pool names have no asterisk
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def percentiles(of: Mapping[int, int]) -> list[float | None]:
    """Return the values of PERCENTILES, with three digits each; all None without measurements."""
    return [significant(sketch.quantile(of, share)) for share in PERCENTILES.values()]


def significant(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")


class PoolSummary(TypedDict):
    model: str
    wanted: int  # number of instances
    simulated: bool
    policy: str  # as declared; `policies` has the version that routers run
    changed_at: float
    halted: str  # reason why a rollout stopped
    slo: dict[str, float]  # TTFT p90 in ms, by class
    observed: NotRequired[bool]  # True if its requests bypass the routers
    at_zero: NotRequired[bool]  # True if it wakes on demand and lacks instances for no other reason
    kv_limit: float  # KV usage (0–1) above which its policy counts an instance as overloaded


class ClassWindow(TypedDict):
    """The last minute of a class: counts, requests per second, [p50, p90, p99]."""

    n: int
    rate: float
    errors: int
    client_errors: int
    refused: int
    refused_why: str
    cancelled: int
    ttft: list[float | None]
    ttft_n: int
    tpot: list[float | None]
    tpot_n: int
    new_tokens: list[float | None]
    new_tokens_n: int
    reuse_gap: list[float | None]
    reuse_gap_n: int
    hit_share: float | None
    window_s: float


Classes = dict[str, ClassWindow | None]  # None if no router has reported the class


class SloMiss(TypedDict):
    """The memory of whether Needs attention lists the SLO of a class of a pool."""

    at: float  # time of the frame
    listed: bool
    turned_at: float | None  # time since which the verdict has differed from the listed one


class PoolTotals(TypedDict):
    """The totals of a pool; None if nothing reported a value."""

    rate: float | None  # requests/s of the last 10 s
    running: float | None
    waiting: float | None
    tokens_s: float | None  # output tokens
    tokens_gpu_s: float | None
    per_million: float | None  # dollars per million output tokens at the current load
    gpu_use: float | None  # 0–1, the mean of the instances that report it
    gpu_memory: float | None  # 0–1, the mean of the instances that report it
    gpu_power_w: float | None  # their sum
    gpu_simulated: float | None  # 0–1, share of these instances whose GPUs are simulated


class PoolFlow(TypedDict):
    links: list[list[str | float]]  # [class, rule, instance, requests/s]
    arcs: list[list[str | float]]  # [prefill, decode, offloads/s, bytes/s]
    instances: int


class LivePolicy(TypedDict):
    policy: str
    version: int
    published_at: float | None
    strategy: str | None
    classes: Json  # thresholds of the document
    means: dict[str, str]  # meaning by class
    routers: int
    acknowledged: int  # number of routers that run the version


class PoolScaling(TypedDict):
    at: float
    mode: str
    replicas: int
    advised: int
    size: str  # replicas, with both sides if these scale separately: 4 (1P3D)
    advised_size: str
    why: str


class ShownDelivery(TypedDict):
    delivery: int
    policy: str
    base: str
    candidate: str
    state: str
    word: str
    why: str
    ended_by: str
    pools: list[str]
    text: str


class ShownEvent(TypedDict):
    at: float
    kind: str
    subject: str
    text: str
    actor: str
    pools: list[str]


class LateStep(TypedDict):
    step: str
    what: str
    age_s: float
    every_s: float
    error: str  # error of its latest run; empty if the run succeeded or is still going on


RouterAnswer = Literal["answered", "no answer", "refused"]  # answer of a router that no longer reports


class WaitedFor(TypedDict, total=False):
    """The senders that are awaited after a time without frames; none is judged by a silence that Weir itself caused."""

    gap: list[float]  # beginning and end
    owed: list[str]  # senders that have not reported since: "samples", "control", "routers", "nodes"
    unwritten: list[float]  # beginning and end of the time in which the database refused writes


class Health(WaitedFor):
    """The ages that distinguish a dead worker from a dead router; None before the first report."""

    samples_age_s: float | None
    samples_expected: int
    control_age_s: float | None
    routers_alive: int
    routers_known: int
    routers_age_s: float | None  # age of a router's latest report
    # "serving"; "late": no router reports, but one answers or may answer; "down"; "none": no router is known
    routers_state: str
    unreadable: int
    read_only: bool  # whether the database refuses writes, according to a control worker that still reports
    late_steps: list[LateStep]  # late steps of the control worker


class Banner(TypedDict):
    """A banner shown above the content of every page; a page shows only the first banner of a frame."""

    kind: str
    level: str  # "error" or "warning"
    text: str
    ago: str  # time since it last reported, as text; empty if it never did


class AttentionItem(TypedDict):
    rule: str
    severity: int  # 3: act now, 2: soon, 1: have a look
    subject: str
    reason: str
    href: str
    pools: list[str]  # empty if it concerns the whole fleet
    since: float


class Frame(TypedDict):
    schema: int
    at: float
    built_by: str
    pools: dict[str, PoolSummary]
    ephemeral_pools: int
    counts: dict[str, int]
    kv_threshold: float  # lowest kv_limit
    instances: Columns
    classes: dict[str, Classes]  # by pool, and of all pools
    totals: dict[str, PoolTotals]  # by pool, and of all pools
    slo: dict[str, dict[str, SloMiss]]  # by pool, and by class with an SLO
    flow: dict[str, PoolFlow]
    routers: Columns
    nodes: Columns
    policies: dict[str, LivePolicy]
    scaling: dict[str, PoolScaling]
    deliveries: list[ShownDelivery]
    events: list[ShownEvent]
    health: Health
    savings: dict[str, dict[str, str]]  # text, title, href by pool
    aliases: dict[str, str]  # description of the requests, by pool that serves names of the document Models
    tiers: dict[str, str]  # description of the tiers, by pool with KV below the GPU
    attention: list[AttentionItem]  # worst first
    banners: list[Banner]  # worst first


KeptClasses = dict[str, dict[str, list[float | None]]]  # numbers of history.CLASS_KEYS by pool and class


class KeptLoads(TypedDict):
    """The loads of a row's instances, in the row's order."""

    running: list[float | None]
    waiting: list[float | None]
    hits: list[float | None]  # cache hit rate, 0–1


class HistoryRow(TypedDict):
    """The part of a frame that is stored."""

    at: float
    classes: KeptClasses
    ids: str  # ids of the instances, one per line
    kv: bytes  # KV usage of each instance, as in `kept_row.kv_bytes`
    loads: NotRequired[KeptLoads]  # missing in rows of an earlier release


# Folds a frame for publication: columns with few values are folded, and fields needed only for the next frame are left
# out. With 1,000 instances, a column of statuses takes one byte per instance instead of eight.
CARRIED = ("waiting_avg", "tokens_total", "epoch", "sampled_at")  # fields of an instance carried from frame to frame
FIRST = "0"
MOST = ord("\\") - ord(FIRST)  # largest number of values in a folded column for which no letter needs an escape in JSON


def folded(frame: Frame) -> dict[str, Any]:
    """Fold columns with few values to {"of": its values, "at": a letter for each row}; the last letter applies to all
    remaining rows. static/js/live_frame.js unfolds it."""
    shown = {name: _folded(column) for name, column in frame["instances"].items() if name not in CARRIED}
    return {**frame, "instances": shown}


def _folded(column: Sequence[Any]) -> Sequence[Any] | dict[str, Any]:
    places: dict[Any, int] = {}
    at = [places.setdefault(value, len(places)) for value in column]
    if len(places) > MOST or 2 * len(places) >= len(column):
        return column
    letters = bytes(ord(FIRST) + place for place in at).decode()
    return {"of": list(places), "at": letters.rstrip(letters[-1]) + letters[-1]}


def unfolded(published: Mapping[str, Any]) -> Frame:
    """Return the frame with every column as a list."""
    count = len(published["instances"]["id"])  # ids are all different and therefore never folded
    columns = {name: _unfolded(column, count) for name, column in published["instances"].items()}
    return cast(Frame, {**published, "instances": columns})


def _unfolded(column: Any, count: int) -> list[Any]:
    if isinstance(column, list):
        return column
    at: str = column["at"]
    return [column["of"][ord(letter) - ord(FIRST)] for letter in at.ljust(count, at[-1])]


def carried(frame: Frame) -> dict[str, Any]:
    return {"at": frame["at"], **{name: frame["instances"][name] for name in CARRIED}}


def with_carried(frame: Frame, kept: Mapping[str, Any] | None) -> Frame:
    """Return the published frame as it was built; carried columns are unknown if `kept` belongs to another frame."""
    columns: Columns = frame["instances"]
    unknown = [None] * len(columns["id"])
    known: Mapping[str, Any] = kept if kept is not None and kept["at"] == frame["at"] else {}
    return {**frame, "instances": {**columns, **{name: known.get(name, unknown) for name in CARRIED}}}
