"""Sets of instances, each known by a number: blocks with the same holders share one.

A set is three bit masks over the instances' slots: holders on the device, in host memory, on disk.
"""

from collections.abc import Iterable

Masks = tuple[int, int, int]  # device, host, disk
EMPTY: Masks = (0, 0, 0)


class HolderSets:
    """Number 0 is the empty set. A set lives as long as blocks have its number (`counts`)."""

    __slots__ = ("_free", "_numbers", "anywhere", "counts", "masks")

    def __init__(self) -> None:
        self._numbers: dict[Masks, int] = {EMPTY: 0}
        self._free: list[int] = []
        self.masks: list[Masks] = [EMPTY]
        self.anywhere: list[int] = [0]  # holders on any tier
        self.counts: list[int] = [0]

    def with_holder(self, number: int, bit: int, tier: int) -> int:
        masks = list(self.masks[number])
        masks[tier] |= bit
        return self._number((masks[0], masks[1], masks[2]))

    def without_holder(self, number: int, bit: int, tier: int) -> int:
        masks = list(self.masks[number])
        masks[tier] &= ~bit
        return self._number((masks[0], masks[1], masks[2]))

    def without_instance(self, number: int, bit: int) -> int:
        device, host, disk = self.masks[number]
        return self._number((device & ~bit, host & ~bit, disk & ~bit))

    def release(self, numbers: Iterable[int]) -> None:
        """Forget the sets that no block has any more."""
        for number in numbers:
            if number and not self.counts[number] and self.masks[number] != EMPTY:
                del self._numbers[self.masks[number]]
                self.masks[number], self.anywhere[number] = EMPTY, 0
                self._free.append(number)

    def __len__(self) -> int:
        return len(self._numbers)

    def _number(self, masks: Masks) -> int:
        number = self._numbers.get(masks)
        if number is not None:
            return number
        anywhere = masks[0] | masks[1] | masks[2]
        if self._free:
            number = self._free.pop()
            self.masks[number], self.anywhere[number] = masks, anywhere
        else:
            number = len(self.masks)
            self.masks.append(masks)
            self.anywhere.append(anywhere)
            self.counts.append(0)
        self._numbers[masks] = number
        return number


def placed(masks: Masks, alive: int) -> Masks:
    """The holders in `alive`, each on its fastest tier."""
    device, host, disk = masks
    device &= alive
    host &= alive & ~device
    return device, host, disk & alive & ~device & ~host
