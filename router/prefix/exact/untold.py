"""Blocks of a shared store that does not report removals; they are assumed to stay for a while. Pure."""

from collections.abc import Iterable, Iterator

BELIEVED_S = 1_800.0  # eviction depends on the store's unknown size; blocks in use are disproved earlier
MOST = 250_000  # blocks per instance, at about 250 bytes each
BLOCK_BYTES = 250

Residence = tuple[int, int]  # (engine's name of a block, tier)


class UntoldBlocks:
    """An instance's unreported blocks by our name, oldest first."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[Residence, float]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, names: Iterable[int], blocks: Iterable[int], tier: int, now: float) -> None:
        """Add blocks. `now`: s, monotonic."""
        for name, block in zip(names, blocks, strict=True):
            self._blocks.pop(block, None)  # a block that is stored again counts from now
            self._blocks[block] = ((name, tier), now)

    def take(self, block: int, before: float) -> Residence | None:
        """Remove and return the blocks stored at or before this time."""
        residence, at = self._blocks.get(block, (None, before))
        if residence is None or at > before:
            return None
        del self._blocks[block]
        return residence

    def expired(self, now: float) -> Iterator[Residence]:
        """Remove and return the blocks whose assumed time has passed."""
        while self._blocks:
            block, (residence, at) = next(iter(self._blocks.items()))
            if now - at <= BELIEVED_S and len(self._blocks) <= MOST:
                return
            del self._blocks[block]
            yield residence
