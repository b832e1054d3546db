"""The data-parallel ranks of an instance: what its engine reports of each, and what routers have sent there."""

from collections.abc import Iterable
from dataclasses import dataclass

from router.contract import ranks
from router.contract.redis.published import DataParallel
from router.contract.redis.router_status import NO_LOAD, Load, RouterStatus, added
from router.contract.redis.sample import InstanceSample, RankSample


@dataclass(frozen=True, slots=True)
class RankRow:
    number: int  # number in its group
    sample: RankSample
    sent: Load  # requests in flight from all routers
    indexes: tuple[str, ...]  # indexes in force, each once: exact, approximate, none

    @property
    def kv_percent(self) -> float | None:
        return None if self.sample.kv_usage is None else self.sample.kv_usage * 100

    @property
    def hit_share(self) -> float | None:
        """The cached share of the tokens looked up since the engine's start."""
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
