"""A store shared by instances, represented as a single holder from which each of them can fetch blocks. Pure."""

from router.prefix.exact.holders import HolderSets, Masks

STORE = ""  # name of the store among the instances' names, which are never empty


class Readers:
    """The instances of a pool that read its store, as a mask of their slots."""

    __slots__ = ("_sets", "bits", "store")

    def __init__(self, sets: HolderSets) -> None:
        self._sets = sets
        self.bits = 0
        self.store = 0  # bit of the store itself

    def anywhere(self, number: int) -> int:
        """Return the instances that hold these blocks or can fetch them."""
        found = self._sets.anywhere[number]
        return found | self.bits if found & self.store else found

    def __getitem__(self, number: int) -> Masks:
        """Return the holders by tier; readers also hold the store's blocks, on the store's tier."""
        device, host, disk = masks = self._sets.masks[number]
        if host & self.store:
            return device, host | self.bits, disk
        return (device, host, disk | self.bits) if disk & self.store else masks
