"""A map from 64-bit keys to small numbers in about 20 bytes per entry; a dict takes a hundred or more.
It uses open addressing with linear probing in `array`s, without an object per entry. Keys should be hashes, since they
determine the slot. Deletion moves later entries up, so there are no tombstones. A table consists of many small ones, so
growing one blocks the event loop for only a few milliseconds.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator

SMALLEST = 8  # slots
FULLEST = 0.7  # share of slots in use before it grows
GROWTH = 1.5
EMPTIEST = 0.2  # share of slots in use before it shrinks


class IntTable:
    """A table of values of at least 1, because 0 means none; key 0 is stored as key 1."""

    __slots__ = ("_bytes", "_mask", "_parts")

    def __init__(self, parts: int, typecode: str) -> None:
        """`parts` is a power of two; `typecode` is that of the values' `array`."""
        self._mask = parts - 1
        self._bytes = [0]
        self._parts = [_Part(typecode, self._bytes) for _ in range(parts)]

    def get(self, key: int) -> int:
        """Return the value, or 0."""
        part = self._parts[key & self._mask]
        keys = part.keys
        wanted = key or 1
        place = ((key >> 32) * part.size) >> 32
        while (found := keys[place]) != wanted:
            if not found:
                return 0
            place += 1
        return part.values[place]

    def put(self, key: int, value: int) -> int:
        """Set a value; return the previous one, or 0."""
        part = self._parts[key & self._mask]
        keys = part.keys
        wanted = key or 1
        place = ((key >> 32) * part.size) >> 32
        while (found := keys[place]) != wanted:
            if not found:
                keys[place] = wanted
                part.values[place] = value
                part.count += 1
                if part.count > part.most or place == part.last:
                    part.resize(GROWTH)
                return 0
            place += 1
        before = part.values[place]
        part.values[place] = value
        return before

    def pop(self, key: int) -> int:
        """Remove a value; return it, or 0."""
        return self._parts[key & self._mask].pop(key)

    # The same for many keys at half the cost, which consists mostly of calls and attribute look-ups.

    def put_all(self, keys: Iterable[int], values: Iterable[int]) -> list[int]:
        """Set many values; return the previous ones."""
        parts, mask, before = self._parts, self._mask, []
        for key, value in zip(keys, values, strict=True):
            part = parts[key & mask]
            slots, wanted = part.keys, key or 1
            place = ((key >> 32) * part.size) >> 32
            while (found := slots[place]) and found != wanted:
                place += 1
            before.append(part.values[place])
            part.values[place] = value
            if not found:
                slots[place] = wanted
                part.count += 1
                if part.count > part.most or place == part.last:
                    part.resize(GROWTH)
        return before

    def pop_all(self, keys: Iterable[int]) -> list[int]:
        """Remove many values; return them."""
        parts, mask, before = self._parts, self._mask, []
        for key in keys:
            part = parts[key & mask]
            slots, wanted = part.keys, key or 1
            place = ((key >> 32) * part.size) >> 32
            while (found := slots[place]) and found != wanted:
                place += 1
            before.append(part.values[place])
            if found:
                part.free(place)
        return before

    def change(self, keys: Iterable[int], to: Callable[[int], int]) -> tuple[list[int], dict[int, int]]:
        """Replace each value by `to(value)`; 0 removes the entry. Return the previous values and their replacements."""
        parts, mask, before = self._parts, self._mask, []
        known: dict[int, int] = {}
        for key in keys:
            part = parts[key & mask]
            slots, wanted = part.keys, key or 1
            place = ((key >> 32) * part.size) >> 32
            while (found := slots[place]) and found != wanted:
                place += 1
            value = part.values[place]
            before.append(value)
            after = known.get(value)
            if after is None:
                after = known[value] = to(value)
            if after == value:
                continue
            if not after:
                part.free(place)
                continue
            part.values[place] = after
            if not found:
                slots[place] = wanted
                part.count += 1
                if part.count > part.most or place == part.last:
                    part.resize(GROWTH)
        return before, known

    def values(self) -> Iterator[int]:
        for part in self._parts:
            yield from filter(None, part.values)

    def __len__(self) -> int:
        return sum(part.count for part in self._parts)

    @property
    def bytes(self) -> int:
        return self._bytes[0]


class _Part:
    """A part of the table. Its last slot is always free, so that every probe ends; the part grows before an entry would
    take that slot."""

    __slots__ = ("_bytes", "count", "keys", "last", "least", "most", "size", "values")

    def __init__(self, typecode: str, its_bytes: list[int]) -> None:
        """Create an empty table. `its_bytes`, the table's size, is kept up to date because it is read from thousands of
        tables twice a second.
        """
        self._bytes = its_bytes
        self.count = 0
        self.keys = array("Q")
        self.values = array(typecode)
        self._allocate(SMALLEST)

    def _allocate(self, size: int) -> None:
        """Allocate `size` slots that keys hash to, and some more for entries pushed beyond the end."""
        spill = 8 + size // 16
        self.size = size
        self.last = size + spill - 1
        self.most = int(size * FULLEST)
        self.least = int(size * EMPTIEST) if size > SMALLEST else 0
        self._bytes[0] += (size + spill - len(self.keys)) * (8 + self.values.itemsize)
        self.keys = array("Q", bytes(8 * (size + spill)))
        self.values = array(self.values.typecode, bytes(self.values.itemsize * (size + spill)))

    def pop(self, key: int) -> int:
        keys, wanted = self.keys, key or 1
        place = ((key >> 32) * self.size) >> 32
        while (found := keys[place]) != wanted:
            if not found:
                return 0
            place += 1
        value = self.values[place]
        self.free(place)
        return value

    def free(self, place: int) -> None:
        """Free a slot; the entries that follow without a gap move up, but not to before their own slot."""
        keys, values, size = self.keys, self.values, self.size
        after = place + 1
        while moved := keys[after]:
            if ((moved >> 32) * size) >> 32 <= place:
                keys[place], values[place] = moved, values[after]
                place = after
            after += 1
        keys[place] = values[place] = 0
        self.count -= 1
        if self.count < self.least:
            self.resize(0.5)

    def resize(self, factor: float) -> None:
        old = [(key, value) for key, value in zip(self.keys, self.values, strict=True) if key]
        self._allocate(max(int(self.size * factor) + 1, SMALLEST))
        while not self._fill(old):
            self._allocate(int(self.size * GROWTH) + 1)

    def _fill(self, entries: list[tuple[int, int]]) -> bool:
        """Fill a slot; return False if an entry would take the last one."""
        keys, values, size, last = self.keys, self.values, self.size, self.last
        for key, value in entries:
            place = ((key >> 32) * size) >> 32
            while keys[place]:
                place += 1
            if place == last:
                return False
            keys[place], values[place] = key, value
        return True
