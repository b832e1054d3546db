"""The blocks that one tier holds: hashes and sizes, least recently used first, without content."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

HIGH, LOW = 0.90, 0.80  # shares of the capacity at which eviction begins and ends, as in Mooncake


class TierCache:
    def __init__(self, capacity: float, high: float = HIGH, low: float = LOW) -> None:
        self.capacity = capacity  # capacity in the unit of the blocks' sizes
        self.used = 0.0
        self.evicted = 0  # number of evicted blocks
        self._high, self._low = capacity * high, capacity * low
        self._sizes: OrderedDict[int, float] = OrderedDict()
        self._pins: Counter[int] = Counter()  # numbers of reads in progress

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: int) -> bool:
        return key in self._sizes

    def put(self, hashes: Sequence[int], size: float = 1.0) -> list[int]:
        """Add blocks of a chain, each of `size`. Return the new ones. The end of a chain is evicted first, because it
        is useless without the beginning."""
        sizes = self._sizes
        if size > self._high:
            return []
        fresh = [key for key in hashes if key not in sizes]
        for key in reversed(hashes):
            if key in sizes:
                sizes.move_to_end(key)
            else:
                sizes[key] = size
        self.used += size * len(fresh)
        return fresh

    def evict(self) -> list[int]:
        """Evict the least recently used blocks that are not being read, until the others are within the limit."""
        if self.used <= self._high:
            return []
        gone = []
        for key, size in self._sizes.items():
            if self.used <= self._low:
                break
            if key not in self._pins:
                gone.append(key)
                self.used -= size
        for key in gone:
            del self._sizes[key]
        self.evicted += len(gone)
        return gone

    def held(self, hashes: Sequence[int]) -> int:
        """Return the number of leading blocks that are held, and count these as used."""
        count = next((index for index, key in enumerate(hashes) if key not in self._sizes), len(hashes))
        self.touch(hashes[:count])
        return count

    def touch(self, hashes: Sequence[int]) -> None:
        """Mark blocks as used; blocks that are not held are skipped."""
        for key in reversed(hashes):
            if key in self._sizes:
                self._sizes.move_to_end(key)

    def pin(self, hashes: Iterable[int]) -> None:
        self._pins.update(hashes)

    def unpin(self, hashes: Iterable[int]) -> None:
        for key in hashes:
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]
