"""Pools and instances in the form that pages and the API show: records with their latest samples."""

import datetime as dt
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import redis
from django.utils import timezone

from controlplane.common.as_seen import found
from controlplane.common.description import Description
from controlplane.live.dashboard.frame.slo import SloRow
from controlplane.live.dashboard.frame.status import BROKEN, ORDER, SERVING, UNHEARD, heard, kv_limit, shown_status
from controlplane.live.dashboard.frame.types import PoolTotals
from controlplane.traffic.policies.selectors import published_names
from fleet import selectors
from fleet.control import autoscaler
from fleet.counted import counted
from fleet.kinds import KINDS
from fleet.models import DesiredState, Instance, InstanceSource, Pool, State
from fleet.plan.desired import DesiredPool
from fleet.plan.drift import differences
from fleet.plan.placement import NodeView, refusal
from fleet.plan.reconcile import waits_for
from fleet.plan.rollout import NOT_LISTED
from fleet.plan.state import beside
from fleet.redis import values_of
from fleet.snapshot import desired_of_all, node_views, observed_of
from fleet.spec.fleet_spec import OBSERVE
from fleet.spec.sections import wakes_on_demand
from router.contract.redis import redis_keys
from router.contract.redis.fleet_status import ScalingAdvice
from router.contract.redis.published import PolicyValue
from router.contract.redis.sample import InstanceSample
from router.contract.redis.staleness import SAMPLE_STALE_S, is_recent

log = logging.getLogger(__name__)
_RESTING = (State.STOPPED, State.FAILED, State.STARTING)


def find_pool(name: str) -> Pool:
    """Return the pool. Raise Http404."""
    return found(Pool.objects.filter(name=name, removed=False).first(), f"no pool is named {name}")


def find_instance(name: str) -> Instance:
    """Return the instance. Raise Http404."""
    return found(Instance.objects.select_related("pool").filter(name=name).first(), f"no instance is named {name}")


@dataclass(frozen=True, slots=True)
class InstanceRow:
    instance: Instance
    status: str  # state, corrected by age and load of the sample
    reason: str
    sample: InstanceSample | None
    age_s: float | None  # age of the sample
    uptime_s: float | None  # None if it is not running
    routable: bool
    kv_limit: float  # KV usage (0–1) above which its policy counts it as overloaded
    last_known: bool = False  # True if nothing has arrived from its node since its sample

    @property
    def beside(self) -> str:
        return self.reason if self.last_known else beside(self.status, self.reason)

    @property
    def recent_sample(self) -> InstanceSample | None:
        """Return the sample unless it is old."""
        return self.sample if is_recent(self.age_s) else None

    @property
    def is_unheard(self) -> bool:
        return self.last_known or self.status in UNHEARD

    @property
    def kv_limit_percent(self) -> int:
        return round(self.kv_limit * 100)

    @property
    def kv_percent(self) -> float | None:
        return None if self.sample is None or self.sample.kv_usage is None else self.sample.kv_usage * 100

    @property
    def kv_blocks(self) -> int | None:
        """Return the KV blocks of all the instance's data-parallel ranks."""
        if self.sample is None or self.sample.kv_blocks is None:
            return None
        return self.sample.kv_blocks * self.instance.facts.dp.ranks

    @property
    def kv_used_blocks(self) -> int | None:
        sample, blocks = self.sample, self.kv_blocks
        if sample is None or sample.kv_usage is None or blocks is None:
            return None
        return round(sample.kv_usage * blocks)

    @property
    def kv_capacity_bytes(self) -> float | None:
        """Return the size of the instance's whole KV cache, if the size of a token's KV is known."""
        size = self.instance.facts.kv.bytes_per_token
        if self.sample is None or not (size and self.kv_blocks and self.sample.block_size):
            return None
        return float(self.kv_blocks * self.sample.block_size * size)


@dataclass(frozen=True, slots=True)
class SourceView:
    """The source that lists the instances of a pool, and the age of its list."""

    engines: Annotated[int, Description("Listed by its latest answer")]
    gone: Annotated[int, Description("Instances of the last hour that it no longer lists")]
    refused: tuple[str, ...]  # listed addresses to which Weir must not connect
    trouble: Annotated[str, Description("Why it does not answer; empty when it does")]
    age_s: Annotated[float, Description("Age of its latest answer, in seconds; 0 while it answers")]

    @property
    def describes(self) -> str:
        return f"lists {counted(self.engines, 'engine')}{f', {self.gone} gone within the hour' if self.gone else ''}"


@dataclass(frozen=True, slots=True)
class PoolRow:
    pool: Pool
    instances: tuple[InstanceRow, ...]
    counts: tuple[tuple[str, int], ...]  # counts by status, worst first
    ready: int
    desired_count: int
    differences: tuple[str, ...]  # differences from the declaration; empty if there are none
    desired: DesiredPool
    unplaceable: str  # reason why no node can take an instance; empty if one can
    waits_for_pools: str  # why it waits; empty if it does not wait
    policy_known: bool  # True if its policy has a version
    advice: ScalingAdvice | None  # advice of its autoscaler
    source: SourceView | None = None  # None if the document lists its instances
    load: PoolTotals | None = None  # None without a recent frame
    slo: tuple[SloRow, ...] = ()  # by class with a target

    @property
    def empty_text(self) -> str:
        if self.at_zero:
            return "At zero: the next request wakes it."
        if self.source is not None:
            return "Its source has listed no engine yet."
        return "None has been created yet." if self.desired.replicas else "Declared with 0 replicas."

    @property
    def at_zero(self) -> bool:
        """Return whether the pool wakes on demand and has no instance that is awake."""
        asleep = {one.instance.desired for one in self.instances} == {DesiredState.ASLEEP}
        return (self.desired.replicas == 0 or asleep) and wakes_on_demand(self.pool.autoscale)

    @property
    def observed(self) -> bool:
        return self.pool.mode == OBSERVE

    @property
    def last_known(self) -> int:
        """Return the number of instances without recent information."""
        return sum(row.last_known for row in self.instances)

    @property
    def is_mixed(self) -> bool:
        """Return whether the counts say more than the health does."""
        return bool(self.last_known) or any(word != "ready" for word, _ in self.counts)

    @property
    def shown(self) -> list[InstanceRow]:
        return failures_first(self.instances)

    @property
    def health(self) -> str:
        """Return a term of the status vocabulary."""
        if self.desired_count == 0:
            return "stopped"
        if self.ready == self.desired_count:
            return "stale" if self.unheard else "ready"
        return "failed" if self.ready == 0 else "saturated"

    @property
    def missed_slo(self) -> str:
        return ", ".join(one.name for one in self.slo if one.status == "failed")

    @property
    def health_text(self) -> str:
        return f"{self.ready} of {self.desired_count} ready"

    @property
    def unheard(self) -> int:
        """Return the number of ready instances whose latest sample is old or missing."""
        return sum(row.instance.state == State.READY and row.is_unheard for row in self.instances)


def failures_first(rows: Iterable[InstanceRow]) -> list[InstanceRow]:
    return sorted(rows, key=lambda row: row.status not in BROKEN)


def samples(names: Sequence[str]) -> dict[str, InstanceSample] | None:
    """Return the latest samples by name; None without Redis."""
    try:
        return values_of(InstanceSample, redis_keys.instance_key, names)
    except redis.RedisError as error:
        log.warning("no samples: %s", error)
        return None


def instance_rows(instances: Iterable[Instance]) -> list[InstanceRow]:
    found = list(instances)
    latest, now = samples([instance.name for instance in found]), timezone.now()
    limits = _kv_limits(sorted({instance.pool.name for instance in found}))
    nodes = _heard(found, latest or {}, now.timestamp())
    rows = [
        _instance_row(instance, (latest or {}).get(instance.name), now, limits[instance.pool.name], nodes)
        for instance in found
    ]
    return rows if latest is not None else [_unread(row) for row in rows]


def _heard(rows: Sequence[Instance], latest: Mapping[str, InstanceSample], now: float) -> dict[str, float]:
    """If a shown instance has an old sample, return when each node last reported, also through instances that are not
    shown."""
    nodes = {row.node for row in rows if row.name in latest and now - latest[row.name].at > SAMPLE_STALE_S}
    if not nodes:
        return {}
    there = dict(Instance.objects.filter(node__in=nodes, state__in=SERVING).values_list("name", "node"))
    known = samples(list(there)) or {}
    return heard(((node, known.get(name)) for name, node in there.items()), now)


def _unread(row: InstanceRow) -> InstanceRow:
    return replace(row, reason="no sample: Redis does not answer") if row.status == "unseen" else row


def _kv_limits(pools: Sequence[str]) -> dict[str, float]:
    """Return the limits by pool; without Redis, the limit of a new policy."""
    try:
        live = values_of(PolicyValue, redis_keys.policy_key, pools)
    except redis.RedisError:
        live = {}
    return {pool: kv_limit(live.get(pool)) for pool in pools}


def _instance_row(
    instance: Instance, sample: InstanceSample | None, now: dt.datetime, kv_limit: float, nodes: Mapping[str, float]
) -> InstanceRow:
    if sample is not None and (sample.epoch != instance.epoch or instance.state in _RESTING):
        sample = None  # the sample is from an earlier process
    status, why, last_known = shown_status(instance.state, sample, now.timestamp(), kv_limit, nodes.get(instance.node))
    started = None if instance.state in _RESTING else instance.started_at
    waiting = selectors.waits_for_group(instance)
    return InstanceRow(
        instance=instance,
        status=status,
        reason=waiting or why or instance.reason,
        routable=instance.routable and not waiting and instance.pool.mode != OBSERVE,
        sample=sample,
        age_s=None if sample is None else max(0.0, now.timestamp() - sample.at),
        uptime_s=None if started is None else (now - started).total_seconds(),
        kv_limit=kv_limit,
        last_known=last_known,
    )


def pool_rows(pools: Iterable[Pool]) -> list[PoolRow]:
    found, now = list(pools), timezone.now()
    nodes, published = node_views(now), published_names()
    desired = {one.name: one for one in desired_of_all((pool for pool in found if pool.kind in KINDS), now)}
    ready = set(Instance.objects.filter(state=State.READY).values_list("pool__name", flat=True))
    advised = autoscaler.latest([pool.name for pool in found if pool.autoscale])
    rows: defaultdict[int, list[InstanceRow]] = defaultdict(list)
    for row in instance_rows(Instance.objects.select_related("pool").filter(pool__in=found).order_by("ordinal")):
        rows[row.instance.pool_id].append(row)
    return [
        _pool_row(pool, rows[pool.pk], desired[pool.name], nodes, ready, published, advised.get(pool.name))
        for pool in found
        if pool.name in desired
    ]


def source_view(pool: Pool) -> SourceView:
    row = InstanceSource.objects.filter(pool=pool).first()
    gone = pool.instances.filter(retired=NOT_LISTED).count()
    if row is None:
        return SourceView(0, gone, (), "it has not been asked yet", 0.0)
    age_s = 0.0 if row.away_since is None else (timezone.now() - row.away_since).total_seconds()
    return SourceView(len(row.engines), gone, tuple(row.refused), row.trouble, max(0.0, age_s))


def _pool_row(
    pool: Pool,
    rows: Sequence[InstanceRow],
    desired: DesiredPool,
    nodes: Sequence[NodeView],
    ready_pools: set[str],
    published: set[str],
    advice: ScalingAdvice | None,
) -> PoolRow:
    statuses = Counter(row.status for row in rows)
    ready, desired_count = selectors.ready_of(pool, [row.instance for row in rows], timezone.now())
    observed = [observed_of(row.instance, row.sample) for row in rows]
    return PoolRow(
        pool=pool,
        instances=tuple(rows),
        counts=tuple((word, statuses[word]) for word in ORDER if statuses[word]),
        ready=ready,
        desired_count=desired_count,
        differences=differences(desired, observed),
        desired=desired,
        unplaceable=_why_unplaceable(desired, nodes),
        waits_for_pools=waits_for(desired, ready_pools),
        advice=advice,
        policy_known=bool(pool.ephemeral_owner) or pool.policy in published,  # experiments publish their own policies
        source=source_view(pool) if desired.listed is not None else None,
    )


def _why_unplaceable(desired: DesiredPool, nodes: Sequence[NodeView]) -> str:
    if any(not refusal(desired.placement, node) for node in nodes):
        return ""
    named = ", ".join(desired.placement.nodes)
    return f"node {named} does not report" if named else "no node can take it"
