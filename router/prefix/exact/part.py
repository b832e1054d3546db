"""What one instance holds, by its own names."""

from collections.abc import Iterable

from router.prefix.exact.table import Table
from router.prefix.forecast.cache_forecast import CacheForecast

NAME_PARTS = 64


class InstanceBlocks:
    __slots__ = ("bit", "copies", "forecast", "names", "on_tier", "slot", "unknown")

    def __init__(self, slot: int, room: int) -> None:
        """`room`: blocks that its KV cache has, 0 if that is not known."""
        self.slot = slot
        self.bit = 1 << slot
        self.names = Table(NAME_PARTS, "Q")  # the engine's name of a block → ours
        # Two requests at once may each fill a block with the same tokens: it goes when the last copy goes.
        self.copies: dict[tuple[int, int], int] = {}  # (engine's name, tier): how many besides the first
        self.on_tier = [0, 0, 0]
        self.unknown = 0  # blocks that could not be placed: their parent was never told
        self.forecast = CacheForecast(room)  # what of the device's will change by the requests under way

    def add_copies(self, names: Iterable[int], tier: int) -> None:
        for name in names:
            self.copies[name, tier] = self.copies.get((name, tier), 0) + 1

    def drop_copy(self, name: int, tier: int) -> bool:
        """True when it was one of several copies."""
        more = self.copies.get((name, tier)) if self.copies else None
        if more is None:
            return False
        if more > 1:
            self.copies[name, tier] = more - 1
        else:
            del self.copies[name, tier]
        return True
