"""The traffic of a delivery as routers report it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from router.contract.redis.delivery import DeliveryTally
from router.contract.redis.router_status import RouterStatus, Window


@dataclass(frozen=True, slots=True)
class Traffic:
    """What Redis holds about a delivery, for all its pools."""

    tallies: tuple[DeliveryTally, ...]
    unreadable: tuple[str, ...]  # fields without a readable tally
    routers: Mapping[str, RouterStatus]  # live routers, by name

    def of(self, pool: str, generation: int) -> tuple[list[DeliveryTally], list[str]]:
        """Return the pool's tallies of this generation, and its unreadable fields."""
        mine = [each for each in self.tallies if (each.pool, each.generation) == (pool, generation)]
        return mine, [name for name in self.unreadable if name.startswith(f"{pool}:")]

    def serving(self, pool: str) -> list[str]:
        return sorted(name for name, status in self.routers.items() if pool in status.pools)

    def windows(self, pool: str, name: str) -> list[Window]:
        """The windows of the class, one from each router."""
        found = (status.classes.get(pool, {}).get(name) for status in self.routers.values())
        return [window for window in found if window is not None]

    def behind(self, pool: str, generation: int) -> list[str]:
        """Return the routers of the pool that do not split as this generation says."""
        return [
            name
            for name in self.serving(pool)
            if (served := self.routers[name].pools[pool]).generation != generation
            or served.split in ("unwatched", "unreadable", "tripped")
        ]
