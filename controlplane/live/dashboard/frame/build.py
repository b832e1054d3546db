"""Builds a dashboard frame: the data of the Live page and the wall as columns, from Redis. Pure.
None means unknown and is never written as 0. Times are Unix seconds, latencies ms, KV shares 0–1.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from msgspec import Struct, ValidationError, structs

from controlplane.live.dashboard.frame import attention, banners, flow, savings, slo, ticker, tiers, totals, types
from controlplane.live.dashboard.frame.listening import Gap, is_owed, latest_gap, latest_unwritten
from controlplane.live.dashboard.frame.status import ORDER, heard, kv_limit, shown_status
from controlplane.live.dashboard.frame.types import (
    Classes,
    ClassWindow,
    Columns,
    Frame,
    Health,
    LateStep,
    LivePolicy,
    PoolScaling,
    PoolSummary,
    PoolTotals,
    RouterAnswer,
    ShownDelivery,
    WaitedFor,
)
from fleet.counted import percent
from fleet.kinds import KINDS
from fleet.plan.state import beside
from router.contract.pools import is_ephemeral
from router.contract.redis.delivery import DeliveryLine
from router.contract.redis.fleet_status import FleetEvent, NodeReport, ScalingAdvice, StepReport
from router.contract.redis.published import FleetValue, PolicyValue, PublishedInstance
from router.contract.redis.router_status import WINDOW_S, RouterStatus, Window
from router.contract.redis.sample import EngineMetrics, GpuSample, InstanceSample
from router.contract.redis.staleness import NODE_GONE_S, ROUTER_DOWN_S, ROUTER_GONE_S, SAMPLE_STALE_S, WORKER_DOWN_S
from router.contract.redis.use import SavingLine
from router.contract.values import sketch
from router.contract.values.reading import read_value
from router.policy.schema.document import upgrade_if_known
from router.policy.strategies import title_of
from router.policy.types import CLASSES

SIMULATED = frozenset(kind.name for kind in KINDS.values() if kind.simulated)
SCHEMA = 4  # also part of redis_keys.FRAME
RESTING = ("stopped", "failed", "starting")  # states without a process, where any sample is of the previous process
STARTED_WINDOW_S = 10  # duration of `started_10s` in a Window
AVERAGE_S = 60.0  # time constant of the running average of waiting requests


@dataclass(frozen=True, slots=True)
class FrameInputs:
    """The decoded inputs of one frame."""

    fleets: Mapping[str, FleetValue] = field(default_factory=dict)  # by pool
    samples: Mapping[str, InstanceSample] = field(default_factory=dict)  # by instance
    routers: Mapping[str, RouterStatus] = field(default_factory=dict)
    router_answers: Collection[RouterAnswer] = ()  # answers of routers, which are asked only if none of them reports
    policies: Mapping[str, PolicyValue] = field(default_factory=dict)  # by pool
    events: Sequence[FleetEvent] = ()  # newest first
    scaling: Mapping[str, ScalingAdvice] = field(default_factory=dict)  # by pool
    deliveries: Sequence[DeliveryLine] = ()
    savings: Sequence[SavingLine] = ()
    nodes: Sequence[NodeReport] = ()
    control_at: float | None = None  # time at which the control worker last built a frame
    steps: Mapping[str, StepReport] = field(default_factory=dict)  # reports of the control worker's steps, by name
    read_only: bool = False  # whether the control worker was refused its writes to the database
    unreadable: int = 0  # values that could not be decoded
    gap: Gap | None = None  # time without frames, after which reports are awaited
    unwritten: Gap | None = None  # time without writes to the database, after which steps are awaited


def build_frame(now: float, inputs: FrameInputs, previous: Frame | None = None, built_by: str = "worker") -> Frame:
    """Build the frame for `now`. The previous frame gives rates and the start times of attention entries."""
    unwritten = latest_unwritten(now, inputs.read_only, previous)
    inputs = replace(inputs, gap=latest_gap(now, previous), unwritten=unwritten)
    pools = sorted(pool for pool in inputs.fleets if not is_ephemeral(pool))
    alive = _alive(now, inputs)
    columns = _instances(now, inputs, pools, _by_id(previous))
    routers = _routers(now, inputs)
    summaries = {pool: _pool(inputs.fleets[pool], inputs.policies.get(pool)) for pool in pools}
    classes = _classes(alive, pools)
    frame: Frame = {
        "schema": SCHEMA,
        "at": round(now, 3),
        "built_by": built_by,
        "pools": summaries,
        "ephemeral_pools": sum(is_ephemeral(pool) for pool in inputs.fleets),
        "counts": _counts(columns["status"]),
        "kv_threshold": min((pool["kv_limit"] for pool in summaries.values()), default=kv_limit(None)),
        "instances": columns,
        "classes": classes,
        "totals": _totals(now, pools, columns, classes, previous),
        "slo": slo.misses(now, summaries, classes, previous["slo"] if previous else {}),
        "flow": flow.of_pools(alive, pools),
        "routers": routers,
        "nodes": _nodes(now, inputs, columns),
        "policies": {pool: _policy(now, pool, inputs) for pool in pools if pool in inputs.policies},
        "scaling": {pool: _scaling(inputs.scaling[pool]) for pool in pools if pool in inputs.scaling},
        "deliveries": [_delivery(line) for line in inputs.deliveries if not line.pools or {*line.pools} & {*pools}],
        "events": ticker.lines(inputs.events),
        "health": _health(now, inputs, columns, routers),
        "savings": {},
        "aliases": {pool: words for pool in pools if (words := flow.in_words(pool, alive))},
        "tiers": {pool: words for pool in pools if (words := tiers.in_words(_tier_rows(now, inputs, pool)))},
        "attention": [],
        "banners": [],
    }
    frame["savings"] = savings.of_pools(frame, inputs.savings)
    frame["attention"] = attention.find(now, frame, previous)
    frame["banners"] = banners.of(frame)
    return frame


def _totals(
    now: float, pools: Sequence[str], columns: Columns, classes: dict[str, Classes], previous: Frame | None
) -> dict[str, PoolTotals]:
    found = totals.of_pools(pools, columns, classes)
    return totals.averaged(found, previous["totals"], now - previous["at"]) if previous else found


def _tier_rows(now: float, inputs: FrameInputs, pool: str) -> list[tiers.TierRow]:
    """Return the tier rows of the recently sampled instances."""
    names = [instance.id for instance in inputs.fleets[pool].instances]
    samples = [inputs.samples[name] for name in names if name in inputs.samples]
    return tiers.tier_rows(sample for sample in samples if now - sample.at <= SAMPLE_STALE_S)


def _pool(fleet: FleetValue, live: PolicyValue | None) -> PoolSummary:
    made: PoolSummary = {
        "model": fleet.model,
        "wanted": len(fleet.instances),
        "simulated": any(instance.kind in SIMULATED for instance in fleet.instances),
        "policy": fleet.policy,  # as declared; `policies` has the version that routers run
        "changed_at": fleet.at,
        "halted": fleet.halted,
        "slo": fleet.slo,
        "kv_limit": kv_limit(live),
    }
    if fleet.at_zero:
        made["at_zero"] = True
    if fleet.observed:
        made["observed"] = True
    return made


def _delivery(line: DeliveryLine) -> ShownDelivery:
    shown = structs.asdict(line)
    return cast(ShownDelivery, {**shown, "text": delivery_text(shown)})


def delivery_text(line: Mapping[str, Any]) -> str:
    """Format a delivery without its countdown, which the page computes from `next_at`."""
    running = line["state"] in ("step", "baking")
    step, comma, so_far = line["step"].partition(", ")
    where = " ".join(filter(None, (step, "" if running and step else line["word"]))) + comma + so_far
    return " · ".join(filter(None, (f"{line['base']} → {line['candidate']} {where}", line["figure"])))


def _scaling(advice: ScalingAdvice) -> PoolScaling:
    return cast(PoolScaling, {name: getattr(advice, name) for name in PoolScaling.__annotations__})


def _counts(statuses: Iterable[str]) -> dict[str, int]:
    counted = Counter(statuses)
    known = {word: counted.pop(word) for word in ORDER if word in counted}
    return known | dict(sorted(counted.items()))


SKETCHES = ("ttft", "tpot", "new_tokens", "reuse_gap")


class FrameInstance(NamedTuple):
    """The values of one instance in the columns of the frame."""

    id: str
    pool: str
    state: str
    status: str
    reason: str
    age_s: float | None
    kv: float | None
    kv_blocks: int | None
    running: float | None
    waiting: float | None
    waiting_avg: float | None
    hit_rate: float | None
    tokens_s: float | None
    tokens_total: float | None
    epoch: int | None
    sampled_at: float | None
    matches: bool
    node: str
    gpus: float | None
    dollars_h: float | None
    gpu_use: float | None
    gpu_memory: float | None
    gpu_power_w: float | None
    gpu_simulated: bool | None  # whether the law of a simulated engine provides the three values above
    last_known: bool  # True if nothing of its node has arrived since its sample


class LastRow(NamedTuple):
    """The values of one instance in the previous frame."""

    waiting_avg: float | None
    tokens_s: float | None
    tokens_total: float | None
    epoch: int | None
    sampled_at: float | None


def _instances(now: float, inputs: FrameInputs, pools: Sequence[str], before: Mapping[str, LastRow]) -> Columns:
    limits = {pool: kv_limit(inputs.policies.get(pool)) for pool in pools}
    nodes = _heard(now, inputs, pools)
    rows = [
        _instance(Moment(now, pool, limits[pool], nodes, inputs.gap), instance, inputs.samples.get(instance.id), before)
        for pool in pools
        for instance in inputs.fleets[pool].instances
    ]
    rows.sort(key=lambda row: (row.pool, _natural(row.id)))
    return {name: [row[i] for row in rows] for i, name in enumerate(FrameInstance._fields)}


def _heard(now: float, inputs: FrameInputs, pools: Sequence[str]) -> dict[str, float]:
    there = (instance for pool in pools for instance in inputs.fleets[pool].instances)
    return heard(((instance.node, inputs.samples.get(instance.id)) for instance in there), now)


class Moment(NamedTuple):
    """The values shared by the instances of one pool."""

    now: float
    pool: str
    kv_limit: float
    nodes: Mapping[str, float]  # when each node last reported
    gap: Gap | None

    def heard_at(self, node: str, sample: InstanceSample | None) -> float | None:
        """Return the time of the last report of the instance's node; None while the instance is still awaited after a
        gap."""
        owed = sample is not None and is_owed(self.gap, sample.at, SAMPLE_STALE_S)
        return None if owed else self.nodes.get(node)


def _instance(
    moment: Moment, instance: PublishedInstance, sample: InstanceSample | None, rows_before: Mapping[str, LastRow]
) -> FrameInstance:
    if instance.state in RESTING or (sample is not None and sample.epoch != instance.epoch):
        sample = None  # a sample of an earlier process
    now, before = moment.now, rows_before.get(instance.id)
    status, why, last_known = shown_status(
        instance.state, sample, now, moment.kv_limit, moment.heard_at(instance.node, sample)
    )
    metrics = sample or EngineMetrics()
    blocks = metrics.kv_blocks or instance.kv_blocks
    gpu = (sample.gpu if sample is not None else None) or GpuSample()
    return FrameInstance(
        id=instance.id,
        pool=moment.pool,
        state=instance.state,
        status=status,
        reason=why if last_known else beside(status, why or instance.reason),
        age_s=None if sample is None else round(max(0.0, now - sample.at), 1),
        kv=_rounded(metrics.kv_usage, 3),
        kv_blocks=None if blocks is None else blocks * instance.dp.ranks,
        running=metrics.running,
        waiting=metrics.waiting,
        waiting_avg=_average(metrics.waiting, before),
        hit_rate=None if sample is None else _rounded(sample.hit_rate, 3),
        tokens_s=_tokens_per_second(sample, before),
        tokens_total=metrics.generation_tokens_total,
        epoch=None if sample is None else sample.epoch,
        sampled_at=None if sample is None else sample.at,
        matches=instance.state == "ready" if instance.matches is None else instance.matches,
        node=instance.node,
        gpus=None if instance.dollars_per_hour is None or instance.state == "stopped" else instance.gpus,
        dollars_h=None if instance.state == "stopped" else instance.dollars_per_hour,
        gpu_use=_rounded(gpu.use, 2),
        gpu_memory=_rounded(gpu.memory, 3),
        gpu_power_w=_rounded(gpu.power_w, 0),
        gpu_simulated=None if gpu == GpuSample() else gpu.simulated,
        last_known=last_known,
    )


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _average(waiting: float | None, before: LastRow | None) -> float | None:
    """Return the average of waiting requests over the last minute; a queue well above it is growing."""
    past = None if before is None else before.waiting_avg
    if waiting is None or past is None:
        return waiting if past is None else past
    return round(past + (waiting - past) / AVERAGE_S, 3)


def _tokens_per_second(sample: InstanceSample | None, before: LastRow | None) -> float | None:
    """Return the rate between two samples of one epoch. Without a newer sample, return the last rate; after a restart,
    None."""
    if sample is None or before is None or before.epoch != sample.epoch or before.sampled_at is None:
        return None
    total, past = sample.generation_tokens_total, before.tokens_total
    if total is None or past is None or total < past:
        return None
    elapsed = sample.at - before.sampled_at
    return before.tokens_s if elapsed <= 0 else round((total - past) / elapsed, 1)


def _by_id(previous: Frame | None) -> dict[str, LastRow]:
    if previous is None:
        return {}
    columns = previous["instances"]
    rows = zip(*(columns[key] for key in LastRow._fields), strict=True)
    return {name: LastRow(*row) for name, row in zip(columns["id"], rows, strict=True)}


def _natural(name: str) -> tuple[str, int]:
    """Return a sort key for natural order: demo-2 before demo-10."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits) if digits else -1


def _is_gone(now: float, router: RouterStatus, gap: Gap | None) -> bool:
    return now - router.at > ROUTER_GONE_S and not is_owed(gap, router.at, ROUTER_GONE_S)


def _alive(now: float, inputs: FrameInputs) -> list[RouterStatus]:
    return [router for router in inputs.routers.values() if not _is_gone(now, router, inputs.gap)]


def _classes(alive: Sequence[RouterStatus], pools: Sequence[str]) -> dict[str, Classes]:
    by_pool = {pool: _class_figures(alive, (pool,)) for pool in pools}
    return {types.ALL_POOLS: _class_figures(alive, pools), **by_pool} if len(pools) > 1 else by_pool


def _class_figures(routers: Sequence[RouterStatus], pools: Sequence[str]) -> Classes:
    figures: Classes = {}
    for name in CLASSES:
        windows = [
            window
            for router in routers
            for pool in pools
            if (window := router.classes.get(pool, {}).get(name)) is not None
        ]
        figures[name] = _window(windows) if routers else None
    return figures


def _window(windows: Sequence[Window]) -> ClassWindow:
    """Sum the routers' windows: counts over WINDOW_S, requests per second, percentiles in ms, tokens and s."""
    sketches = {name: sketch.merge(getattr(window, name) for window in windows) for name in SKETCHES}
    decided = sum(window.hit_share.n for window in windows)
    return {
        "n": sum(window.n for window in windows),
        "rate": round(sum(window.started_10s for window in windows) / STARTED_WINDOW_S, 2),
        "errors": sum(window.error for window in windows),
        "client_errors": sum(window.client_error for window in windows),
        "refused": sum(window.refused for window in windows),
        "refused_why": totals.words(window.refusals for window in windows),
        "cancelled": sum(window.cancelled for window in windows),
        "ttft": types.percentiles(sketches["ttft"]),
        "ttft_n": sketch.count(sketches["ttft"]),
        "tpot": types.percentiles(sketches["tpot"]),
        "tpot_n": sketch.count(sketches["tpot"]),
        "new_tokens": types.percentiles(sketches["new_tokens"]),
        "new_tokens_n": sketch.count(sketches["new_tokens"]),
        "reuse_gap": types.percentiles(sketches["reuse_gap"]),
        "reuse_gap_n": sketch.count(sketches["reuse_gap"]),
        "hit_share": round(sum(window.hit_share.sum for window in windows) / decided, 3) if decided else None,
        "window_s": WINDOW_S,
    }


def _routers(now: float, inputs: FrameInputs) -> Columns:
    rows = [inputs.routers[name] for name in sorted(inputs.routers)]
    ages = [round(max(0.0, now - row.at), 1) for row in rows]
    return {
        "id": [row.id for row in rows],
        "url": [row.url for row in rows],
        "age_s": ages,
        "gone": [_is_gone(now, row, inputs.gap) for row in rows],
        "versions": [{pool: served.version for pool, served in row.pools.items()} for row in rows],
        "degraded": [list(row.degraded) for row in rows],
    }


def _nodes(now: float, inputs: FrameInputs, instances: Columns) -> Columns:
    """Return the nodes as columns. `silent_s` is the time since a node's last report, or None while it reports."""
    there: Counter[str] = Counter(instances["node"])
    return {
        "name": [node.name for node in inputs.nodes],
        "silent_s": [_silent_s(now, node, inputs.gap) for node in inputs.nodes],
        "instances": [there[node.name] for node in inputs.nodes],
    }


def _silent_s(now: float, node: NodeReport, gap: Gap | None) -> float | None:
    if node.missed_at is None or is_owed(gap, node.missed_at, NODE_GONE_S):
        return None
    return round(max(0.0, now - node.missed_at))


def _policy(now: float, pool: str, inputs: FrameInputs) -> LivePolicy:
    live = inputs.policies[pool]
    alive = _alive(now, inputs)
    running = [router.pools[pool].version if pool in router.pools else None for router in alive]
    document = live.document
    limits = document.get("classes") or {}
    section = upgrade_if_known(document).get("strategy")
    strategy = section.get("name") if isinstance(section, dict) else None
    return {
        "policy": live.policy,
        "version": live.version,
        "published_at": live.published_at,
        "strategy": title_of(strategy) if isinstance(strategy, str) else None,
        "classes": limits,
        "means": class_words(limits),
        "routers": len(running),
        "acknowledged": sum(version == live.version for version in running),
    }


class ClassLimits(Struct):
    """The thresholds of a policy that define its classes."""

    heavy_new_tokens: int
    warm_hit_share: float
    warm_new_tokens: int


def class_words(limits: object) -> dict[str, str]:
    """Describe each class; empty while the thresholds are unknown."""
    try:
        known = read_value(limits, ClassLimits)
    except ValidationError:
        return {}
    heavy, warm = f"{known.heavy_new_tokens:,}", f"{known.warm_new_tokens:,}"
    return {
        "warm": f"more than {percent(known.warm_hit_share)} cached or under {warm} new tokens",
        "medium": f"{warm} to {heavy} new tokens",
        "heavy": f"{heavy} new tokens or more",
    }


def _health(now: float, inputs: FrameInputs, columns: Columns, routers: Columns) -> Health:
    serving = [age for age, state in zip(columns["age_s"], columns["state"], strict=True) if state == "ready"]
    known = [age for age in serving if age is not None]
    return {
        "samples_age_s": min(known) if known else None,
        "samples_expected": len(serving),
        "control_age_s": None if inputs.control_at is None else round(max(0.0, now - inputs.control_at), 1),
        "routers_alive": routers["gone"].count(False),
        "routers_known": len(routers["gone"]),
        "routers_age_s": min(routers["age_s"], default=None),
        "routers_state": _routers_state(routers, inputs.router_answers),
        "unreadable": inputs.unreadable,
        "read_only": inputs.read_only,
        "late_steps": [
            _late(now, name, step)
            for name, step in inputs.steps.items()
            if _is_late(now, step, inputs.gap) and not is_owed(inputs.unwritten, step.at, step.late_after_s)
        ],
        **_waited_for(now, inputs, columns),
    }


def _is_late(now: float, step: StepReport, gap: Gap | None) -> bool:
    return step.is_late(now) and not is_owed(gap, step.at, step.late_after_s)


def _waited_for(now: float, inputs: FrameInputs, columns: Columns) -> WaitedFor:
    """Return the kinds of senders that are awaited since a gap; empty if none are."""
    gap = inputs.gap
    found: WaitedFor = {} if inputs.unwritten is None else {"unwritten": list(inputs.unwritten)}
    if gap is None:
        return found
    serving = [age for age, state in zip(columns["age_s"], columns["state"], strict=True) if state == "ready"]
    known = [age for age in serving if age is not None]
    times: dict[str, tuple[list[float | None], float]] = {
        "samples": ([now - min(known) if known else None] if serving else [], WORKER_DOWN_S),
        "control": ([inputs.control_at], WORKER_DOWN_S),
        "routers": ([router.at for router in inputs.routers.values()] or [None], ROUTER_GONE_S),
        "nodes": ([node.missed_at for node in inputs.nodes if node.missed_at is not None], NODE_GONE_S),
    }
    owed = [name for name, (ats, limit_s) in times.items() if any(gap.is_owed(at, limit_s) for at in ats)]
    return {**found, "gap": [gap.began, gap.ended], "owed": owed}


def _routers_state(routers: Columns, answers: Collection[RouterAnswer]) -> str:
    """Return the routers' state. Without reports in Redis they are late; they are down only if none answers a
    request."""
    if False in routers["gone"]:
        return "serving"
    if not routers["id"]:
        return "none"
    if "answered" in answers or ("no answer" in answers and min(routers["age_s"]) <= ROUTER_DOWN_S):
        return "late"
    return "down"


def _late(now: float, name: str, step: StepReport) -> LateStep:
    return {
        "step": name,
        "what": step.what,
        "age_s": round(now - step.at, 1),
        "every_s": step.every_s,
        "error": step.error,
    }
