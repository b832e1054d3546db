"""The blocks of one instance, by the engine's names."""

from collections.abc import Iterable, Mapping

from router.prefix.exact.groups import GroupNeeds
from router.prefix.exact.table import IntTable
from router.prefix.exact.untold import UntoldBlocks
from router.prefix.forecast.cache_forecast import CacheForecast, Heads

NAME_PARTS = 64
MOST_COPIED = 100_000  # blocks with several copies, now or earlier
FIRST_ONLY = GroupNeeds()


class InstanceBlocks:
    __slots__ = ("bit", "copied", "copies", "forecast", "groups", "names", "on_tier", "slot", "unknown", "untold")

    def __init__(self, slot: int, capacity: int, heads: Heads) -> None:
        """`capacity` is the number of blocks in its KV cache, 0 if unknown."""
        self.slot = slot
        self.bit = 1 << slot
        self.names = IntTable(NAME_PARTS, "Q")  # the engine's name of a block → the index's
        # Concurrent requests may fill two blocks with the same tokens; a block is held until its last copy is removed.
        self.copies: dict[tuple[int, int], int] = {}  # (engine's name, tier) → number of copies after the first
        # By the index's name of a block with several copies: its latest key there, and the time when that was stored
        # (s, monotonic)
        self.copied: dict[int, tuple[tuple[int, int], float]] = {}
        self.on_tier = [0, 0, 0]  # number of blocks by tier, then by further group
        self.groups = FIRST_ONLY
        self.untold = UntoldBlocks()
        self.unknown = 0  # blocks whose parent is unknown
        self.forecast = CacheForecast(capacity, slot, heads)  # forecast of the device's changes by requests in flight

    def add_copies(self, blocks: Iterable[tuple[int, int]], tier: int, now: float) -> None:
        """Add copies. `blocks` maps the engine's names to ours; `now`: s, monotonic."""
        for name, block in blocks:
            self.copies[name, tier] = self.copies.get((name, tier), 0) + 1
            self.copied[block] = (name, tier), now
        while len(self.copied) > MOST_COPIED:
            del self.copied[next(iter(self.copied))]

    def take_copies(self, remaining: Mapping[int, int], tier: int) -> int:
        """Take over the engine's count of copies. Return the number of copies beyond the first of each block."""
        more = 0
        for name, count in remaining.items():
            if not self.names.get(name):
                continue
            further = max(count - 1, 0)
            before = self.copies.pop((name, tier), 0)
            if further:
                self.copies[name, tier] = further
            more += further - before
        return more

    def drop_copy(self, name: int, tier: int) -> bool:
        """Remove a copy; return True if there were several."""
        more = self.copies.get((name, tier)) if self.copies else None
        if more is None:
            return False
        if more > 1:
            self.copies[name, tier] = more - 1
        else:
            del self.copies[name, tier]
        return True
