"""Sets of instances, each known by a number: blocks with the same holders share one.

A set is bit masks over the instances' slots: holders on the device, in host memory, on disk; and on the device by
further groups of layers (groups.py), as many as there are.
"""

from collections.abc import Iterable

Masks = tuple[int, int, int]  # device, host, disk
EMPTY: Masks = (0, 0, 0)
FURTHER = 3  # place of the first further group, after the tiers


class HolderSets:
    """Number 0 is the empty set. A set lives as long as blocks have its number (`counts`)."""

    __slots__ = ("_free", "_numbers", "anywhere", "counts", "groups", "masks")

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {EMPTY: 0}
        self._free: list[int] = []
        self.masks: list[Masks] = [EMPTY]
        self.groups: list[tuple[int, ...]] = [()]
        self.anywhere: list[int] = [0]  # holders on any tier
        self.counts: list[int] = [0]

    def with_holder(self, number: int, bit: int, place: int) -> int:
        """`place`: a tier, or FURTHER and the number of the further group."""
        held = [*self.masks[number], *self.groups[number]]
        held += [0] * (place + 1 - len(held))
        held[place] |= bit
        return self._number(held)

    def without_holder(self, number: int, bit: int, place: int) -> int:
        held = [*self.masks[number], *self.groups[number]]
        if place < len(held):
            held[place] &= ~bit
        return self._number(held)

    def without_instance(self, number: int, bit: int) -> int:
        return self._number([mask & ~bit for mask in (*self.masks[number], *self.groups[number])])

    def places(self, number: int, bit: int) -> list[int]:
        """Where this instance holds the block."""
        held = (*self.masks[number], *self.groups[number])
        return [place for place, mask in enumerate(held) if mask & bit]

    def release(self, numbers: Iterable[int]) -> None:
        """Forget the sets that no block has any more."""
        for number in numbers:
            key = (*self.masks[number], *self.groups[number])
            if number and not self.counts[number] and key != EMPTY:
                del self._numbers[key]
                self.masks[number], self.groups[number], self.anywhere[number] = EMPTY, (), 0
                self._free.append(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def _number(self, held: list[int]) -> int:
        while len(held) > FURTHER and not held[-1]:
            held.pop()
        key = tuple(held)
        number = self._numbers.get(key)
        if number is not None:
            return number
        if self._free:
            number = self._free.pop()
        else:
            number = len(self.masks)
            self.masks.append(EMPTY)
            self.groups.append(())
            self.anywhere.append(0)
            self.counts.append(0)
        device, host, disk, *groups = held
        self.masks[number], self.groups[number] = (device, host, disk), tuple(groups)
        self.anywhere[number] = device | host | disk
        self._numbers[key] = number
        return number


def placed(masks: Masks, alive: int) -> Masks:
    """The holders in `alive`, each on its fastest tier."""
    device, host, disk = masks
    device &= alive
    host &= alive & ~device
    return device, host, disk & alive & ~device & ~host
