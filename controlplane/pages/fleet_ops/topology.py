"""The path of requests and KV blocks: routers → pool → nodes → instances with their GPUs, and the usage of KV tiers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.live.dashboard.frame.tiers import tier_rows
from controlplane.pages.fleet_ops.indexes import live_statuses
from controlplane.pages.fleet_ops.rows import InstanceRow, PoolRow
from router.contract import ranks
from router.contract.redis.published import DataParallel
from router.contract.redis.router_status import NO_LOAD, Load, RouterStatus, added
from router.contract.redis.sample import InstanceSample, RankSample

SHOWN = 32  # instances of a pool shown on a node
STARTED_S = 10  # window of `started_10s`


@dataclass(frozen=True, slots=True)
class RouterNode:
    id: str
    version: int  # version of the pool's policy
    rate: float  # requests/s of the pool


@dataclass(frozen=True, slots=True)
class PoolNode:
    """The part of a pool on one node."""

    name: str  # empty if there is no node yet
    instances: tuple[InstanceRow, ...]  # at most SHOWN
    hidden: int


@dataclass(frozen=True, slots=True)
class TierUse:
    name: str
    used: float  # bytes
    size: float  # bytes

    @property
    def percent(self) -> float:
        return min(100.0, 100 * self.used / self.size) if self.size else 0.0


@dataclass(frozen=True, slots=True)
class PoolTopology:
    pool: PoolRow
    routers: tuple[RouterNode, ...]
    nodes: tuple[PoolNode, ...]
    tiers: tuple[TierUse, ...]


def topology(pools: Iterable[PoolRow]) -> list[PoolTopology]:
    routers = live_statuses()
    return [
        PoolTopology(row, _routers(row.pool.name, routers), _nodes(row.shown), _tiers(row.instances)) for row in pools
    ]


def _routers(pool: str, routers: Mapping[str, RouterStatus]) -> tuple[RouterNode, ...]:
    return tuple(
        RouterNode(name, status.pools[pool].version, _rate(status, pool))
        for name, status in sorted(routers.items())
        if pool in status.pools
    )


def _rate(status: RouterStatus, pool: str) -> float:
    return sum(window.started_10s for window in status.classes.get(pool, {}).values()) / STARTED_S


def _nodes(instances: Sequence[InstanceRow]) -> tuple[PoolNode, ...]:
    there: dict[str, list[InstanceRow]] = defaultdict(list)
    for row in instances:
        there[row.instance.node].append(row)
    return tuple(PoolNode(name, tuple(rows[:SHOWN]), max(0, len(rows) - SHOWN)) for name, rows in sorted(there.items()))


def _tiers(instances: Sequence[InstanceRow]) -> tuple[TierUse, ...]:
    """Return the tiers: the device's from KV usage, if the size of a block is known; the others from the instances'
    reports."""
    total: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in instances:
        for name, used, size in _tiers_of(row):
            total[name][0] += used
            total[name][1] += size
    below = tier_rows(row.sample for row in instances)
    known = [
        TierUse(one.name, one.total.used_bytes or 0.0, one.total.capacity_bytes)
        for one in below
        if one.total.capacity_bytes
    ]
    return (*(TierUse(name, used, size) for name, (used, size) in total.items()), *known)


def _tiers_of(row: InstanceRow) -> Iterable[tuple[str, float, float]]:
    sample, capacity = row.sample, row.kv_capacity_bytes
    if sample is None:
        return
    if capacity is not None and sample.kv_usage is not None:
        yield "device", sample.kv_usage * capacity, capacity
    for name, (used, size) in sample.tiers.items():
        if name not in sample.kv_tiers:
            yield name, used, size


# The data-parallel ranks of an instance: the engine's report about each, and the requests that routers have sent to it


@dataclass(frozen=True, slots=True)
class RankRow:
    number: int  # number in its group
    sample: RankSample
    sent: Load  # requests in flight from all routers
    indexes: tuple[str, ...]  # indexes in use, without duplicates: exact, approximate, none

    @property
    def kv_percent(self) -> float | None:
        return None if self.sample.kv_usage is None else self.sample.kv_usage * 100

    @property
    def hit_share(self) -> float | None:
        """Return the cached share of the tokens looked up since the engine's start."""
        asked, found = self.sample.prefix_queries_total, self.sample.prefix_hits_total
        return found / asked if asked and found is not None else None


def rank_rows(
    instance: str, dp: DataParallel, sample: InstanceSample | None, routers: Iterable[RouterStatus]
) -> list[RankRow]:
    """Return the ranks; empty for an instance without ranks."""
    if dp.ranks == 1:
        return []
    alive = list(routers)
    return [_row(instance, number, sample, alive) for number in range(dp.first, dp.first + dp.ranks)]


def _row(instance: str, number: int, sample: InstanceSample | None, routers: list[RouterStatus]) -> RankRow:
    name, sent = ranks.named(instance, number), NO_LOAD
    for router in routers:
        sent = added(sent, router.ranks.get(name, NO_LOAD))
    found = {router.indexes[name].index for router in routers if name in router.indexes}
    of_rank = sample.ranks.get(str(number)) if sample is not None else None
    return RankRow(number, of_rank or RankSample(), sent, tuple(sorted(found)))
