"""What the pages and the API show of pools and instances: the record beside the latest sample."""

import datetime as dt
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import redis
from django.utils import timezone

from controlplane.dashboard.status import ORDER, shown_status
from controlplane.policies.selectors import published_names
from fleet import selectors
from fleet.control import autoscaler
from fleet.kinds import KINDS
from fleet.models import Instance, Pool, State
from fleet.plan.desired import DesiredPool
from fleet.plan.drift import differences
from fleet.plan.placement import NodeView, refusal
from fleet.plan.reconcile import waits_for
from fleet.redis import values_of
from fleet.snapshot import desired_of_all, node_views, observed_of
from router.contract import redis_keys
from router.contract.fleet_status import ScalingAdvice
from router.contract.sample import InstanceSample

log = logging.getLogger(__name__)
_RESTING = (State.STOPPED, State.FAILED, State.STARTING)


@dataclass(frozen=True, slots=True)
class InstanceRow:
    instance: Instance
    status: str  # the word that is shown: its state, corrected by the sample's age and load
    reason: str
    sample: InstanceSample | None
    age_s: float | None  # of the sample; None: there is none
    uptime_s: float | None  # None: nothing runs

    @property
    def kv_percent(self) -> float | None:
        return None if self.sample is None or self.sample.kv_usage is None else self.sample.kv_usage * 100

    @property
    def kv_used_blocks(self) -> int | None:
        sample = self.sample
        if sample is None or sample.kv_usage is None or sample.kv_blocks is None:
            return None
        return round(sample.kv_usage * sample.kv_blocks)

    @property
    def kv_room(self) -> float | None:
        """Bytes of its whole KV cache, where a token's size is known."""
        size = self.instance.wire.get("kv", {}).get("bytes_per_token")
        if self.sample is None or not (size and self.sample.kv_blocks and self.sample.block_size):
            return None
        return float(self.sample.kv_blocks * self.sample.block_size * size)

    @property
    def hit_percent(self) -> float | None:
        return None if self.sample is None or self.sample.hit_rate is None else self.sample.hit_rate * 100


@dataclass(frozen=True, slots=True)
class PoolRow:
    pool: Pool
    instances: tuple[InstanceRow, ...]
    counts: tuple[tuple[str, int], ...]  # by status, worst first; they add up to the instances there are
    ready: int
    wanted: int
    differences: tuple[str, ...]  # from what is declared; empty: it matches
    desired: DesiredPool
    away: str  # why no node could take an instance of it; empty: one could
    waits: str  # for which pools; empty: for none
    policy_known: bool  # the policy it names has a version
    advice: ScalingAdvice | None  # of its autoscaler

    @property
    def health(self) -> str:
        """A word of the status vocabulary."""
        if self.wanted == 0:
            return "stopped"
        if self.ready == self.wanted:
            return "ready"
        return "failed" if self.ready == 0 else "saturated"

    @property
    def health_words(self) -> str:
        return f"{self.ready} of {self.wanted} ready"


def samples(names: Sequence[str]) -> dict[str, InstanceSample] | None:
    """By name, the latest samples; None without Redis."""
    try:
        return values_of(InstanceSample, redis_keys.instance_key, names)
    except redis.RedisError as error:
        log.warning("no samples: %s", error)
        return None


def instance_rows(instances: Iterable[Instance]) -> list[InstanceRow]:
    found = list(instances)
    latest, now = samples([instance.name for instance in found]), timezone.now()
    rows = [_instance_row(instance, (latest or {}).get(instance.name), now) for instance in found]
    return rows if latest is not None else [_unread(row) for row in rows]


def _unread(row: InstanceRow) -> InstanceRow:
    return replace(row, reason="no figures: Redis does not answer") if row.status == "unseen" else row


def _instance_row(instance: Instance, sample: InstanceSample | None, now: dt.datetime) -> InstanceRow:
    if sample is not None and (sample.epoch != instance.epoch or instance.state in _RESTING):
        sample = None  # of the process before this one
    status, why = shown_status(instance.state, sample, now.timestamp())
    started = None if instance.state in _RESTING else instance.started_at
    return InstanceRow(
        instance=instance,
        status=status,
        reason=why or instance.reason,
        sample=sample,
        age_s=None if sample is None else max(0.0, now.timestamp() - sample.at),
        uptime_s=None if started is None else (now - started).total_seconds(),
    )


def pool_rows(pools: Iterable[Pool]) -> list[PoolRow]:
    found, now = list(pools), timezone.now()
    nodes, published = node_views(now), published_names()
    desired = {one.name: one for one in desired_of_all((pool for pool in found if pool.kind in KINDS), now)}
    ready = set(Instance.objects.filter(state=State.READY).values_list("pool__name", flat=True))
    advised = autoscaler.latest([pool.name for pool in found if pool.autoscale])
    return [
        _pool_row(pool, desired[pool.name], nodes, ready, published, advised.get(pool.name))
        for pool in found
        if pool.name in desired
    ]


def _pool_row(
    pool: Pool,
    desired: DesiredPool,
    nodes: Sequence[NodeView],
    ready_pools: set[str],
    published: set[str],
    advice: ScalingAdvice | None,
) -> PoolRow:
    rows = instance_rows(selectors.instances(pool))
    counted = Counter(row.status for row in rows)
    ready, wanted = selectors.pool_ready(pool.name)
    observed = [observed_of(row.instance, row.sample) for row in rows]
    return PoolRow(
        pool=pool,
        instances=tuple(rows),
        counts=tuple((word, counted[word]) for word in ORDER if counted[word]),
        ready=ready,
        wanted=wanted,
        differences=differences(desired, observed),
        desired=desired,
        away=_away(desired, nodes),
        waits=waits_for(desired, ready_pools),
        advice=advice,
        policy_known=bool(pool.ephemeral_owner) or pool.policy in published,  # experiments publish by themselves
    )


def _away(desired: DesiredPool, nodes: Sequence[NodeView]) -> str:
    if any(not refusal(desired.placement, node) for node in nodes):
        return ""
    named = ", ".join(desired.placement.nodes)
    return f"node {named} does not report" if named else "no node may take it"
