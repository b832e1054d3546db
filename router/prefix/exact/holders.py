"""Numbered sets of instances, so that blocks with the same holders share one set.
A set consists of bit masks over the instances' slots: holders on the device, in host memory, on disk, and on the device
by further groups of layers (groups.py).
"""

from collections.abc import Iterable

Masks = tuple[int, int, int]  # device, host, disk
EMPTY: Masks = (0, 0, 0)
FURTHER = 3  # position of the first further group, after the tiers


class HolderSets:
    """All sets in use. Number 0 is the empty set. A set exists as long as blocks have its number (`counts`)."""

    __slots__ = ("_free", "_numbers", "anywhere", "counts", "groups", "masks")

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {EMPTY: 0}
        self._free: list[int] = []
        self.masks: list[Masks] = [EMPTY]
        self.groups: list[tuple[int, ...]] = [()]
        self.anywhere: list[int] = [0]  # holders on any tier
        self.counts: list[int] = [0]

    def with_holder(self, number: int, bit: int, place: int) -> int:
        """Return the set with one more holder. `place` is a tier, or FURTHER + the number of the further group."""
        if place < FURTHER:
            masks = list(self.masks[number])
            masks[place] |= bit
            return self._number((masks[0], masks[1], masks[2]), self.groups[number])
        groups, place = list(self.groups[number]), place - FURTHER
        groups += [0] * (place + 1 - len(groups))
        groups[place] |= bit
        return self._number(self.masks[number], tuple(groups))

    def without_holder(self, number: int, bit: int, place: int) -> int:
        if place < FURTHER:
            masks = list(self.masks[number])
            masks[place] &= ~bit
            return self._number((masks[0], masks[1], masks[2]), self.groups[number])
        groups = list(self.groups[number])
        if place - FURTHER < len(groups):
            groups[place - FURTHER] &= ~bit
        return self._number(self.masks[number], _trimmed(groups))

    def without_instance(self, number: int, bit: int) -> int:
        device, host, disk = self.masks[number]
        groups = self.groups[number]
        left = _trimmed([mask & ~bit for mask in groups]) if groups else ()
        return self._number((device & ~bit, host & ~bit, disk & ~bit), left)

    def places(self, number: int, bit: int) -> list[int]:
        """Return the places where this instance holds the block."""
        return [place for place, mask in enumerate(self.masks[number] + self.groups[number]) if mask & bit]

    def release(self, numbers: Iterable[int]) -> None:
        """Forget the sets that no block uses."""
        for number in numbers:
            if number and not self.counts[number] and (key := self.masks[number] + self.groups[number]) != EMPTY:
                del self._numbers[key]
                self.masks[number], self.groups[number], self.anywhere[number] = EMPTY, (), 0
                self._free.append(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def _number(self, masks: Masks, groups: tuple[int, ...]) -> int:
        key = masks + groups
        number = self._numbers.get(key)
        if number is not None:
            return number
        anywhere = masks[0] | masks[1] | masks[2]
        if self._free:
            number = self._free.pop()
            self.masks[number], self.groups[number], self.anywhere[number] = masks, groups, anywhere
        else:
            number = len(self.masks)
            self.masks.append(masks)
            self.groups.append(groups)
            self.anywhere.append(anywhere)
            self.counts.append(0)
        self._numbers[key] = number
        return number


def _trimmed(groups: list[int]) -> tuple[int, ...]:
    while groups and not groups[-1]:
        groups.pop()
    return tuple(groups)


def placed(masks: Masks, alive: int) -> Masks:
    """Return the holders in `alive`, each only on its fastest tier."""
    device, host, disk = masks
    device &= alive
    host &= alive & ~device
    return device, host, disk & alive & ~device & ~host
