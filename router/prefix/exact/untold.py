"""Blocks of a store that others share, of which no event tells that they left: believed for a while. Pure."""

from collections.abc import Iterable, Iterator

BELIEVED_S = 1_800.0  # a store evicts by its size, which nobody tells: what is asked for again is refuted before
MOST = 250_000  # blocks of one instance, at about 250 bytes each
BLOCK_BYTES = 250

Residence = tuple[int, int]  # the engine's name of a block, its tier


class UntoldBlocks:
    """Of one instance, by our name, the one stored longest ago first."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[Residence, float]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, names: Iterable[int], blocks: Iterable[int], tier: int, now: float) -> None:
        """`now`: s, monotonic."""
        for name, block in zip(names, blocks, strict=True):
            self._blocks.pop(block, None)  # a block that is stored again counts from now
            self._blocks[block] = ((name, tier), now)

    def take(self, block: int) -> Residence | None:
        residence = self._blocks.pop(block, None)
        return residence[0] if residence is not None else None

    def expired(self, now: float) -> Iterator[Residence]:
        """Take those that are not believed any more."""
        while self._blocks:
            block, (residence, at) = next(iter(self._blocks.items()))
            if now - at <= BELIEVED_S and len(self._blocks) <= MOST:
                return
            del self._blocks[block]
            yield residence
