"""An instance's blocks in use, and the order in which it evicts the others. Blocks are kept in stretches: parts of a
chain that were freed, or are used, together. Idle stretches are evicted in the order in which they were freed, each
from its end. A chain is always used from its head. A stretch therefore shrinks from its beginning when it is used again
and from its end on eviction, and stays in one piece.
"""

from array import array
from collections.abc import Sequence

from router.prefix.common import common

_STRETCH_BYTES = 500


class _Segment:
    __slots__ = ("at", "blocks", "busy")

    def __init__(self, blocks: "array[int]", busy: bool, at: int) -> None:
        self.blocks = blocks
        self.busy = busy
        self.at = at  # number of its latest use; lower numbers are evicted first


class EvictionOrder:
    """The order of blocks, identified by chained hashes: equal hashes mean equal chains up to that point."""

    __slots__ = ("_ends", "_idle", "_next", "_size", "_starts", "idle")

    def __init__(self) -> None:
        self._starts: dict[int, _Segment] = {}  # by first block
        self._ends: dict[int, _Segment] = {}  # by last block
        self._idle: dict[_Segment, None] = {}  # idle stretches, freed longest ago first
        self._next = 0
        self._size = 0
        self.idle = 0  # idle blocks

    @property
    def bytes(self) -> int:
        """Estimate the memory."""
        return self._size * 8 + len(self._starts) * _STRETCH_BYTES

    def use(self, chain: "array[int]", upto: int, *, busy: bool) -> None:
        """Make the leading blocks that are still known, up to `upto`, one stretch, which is the last to be evicted."""
        place = 0
        while place < upto and (stretch := self._starts.get(chain[place])) is not None:
            same = common(stretch.blocks, chain, place, upto)
            self._shorten(stretch, same)
            place += same
        if place:
            self._put(_Segment(chain[:place], busy, self._next))

    def stored(self, blocks: Sequence[int], parent: int, *, busy: bool) -> None:
        """Add new blocks; they extend the stretch that ends with their parent."""
        stretch = self._ends.get(parent)
        if stretch is None or stretch.busy != busy:
            self._put(_Segment(array("Q", blocks), busy, self._next))
            return
        del self._ends[parent]
        stretch.blocks.extend(blocks)
        self._ends[stretch.blocks[-1]] = stretch
        self._size += len(blocks)
        if not busy:  # stored by an unknown request, which counts as used now
            self._idle.pop(stretch, None)
            self._idle[stretch] = None
            stretch.at, self._next = self._next, self._next + 1
            self.idle += len(blocks)

    def gone(self, blocks: Sequence[int]) -> list[int]:
        """Remove evicted blocks, in this order. Return those of requests in flight."""
        busy: list[int] = []
        ends, place, end = self._ends, 0, len(blocks)
        while place < end:
            stretch = ends.pop(blocks[place], None)
            first = place
            place += 1
            if stretch is None:
                continue
            left = stretch.blocks
            left.pop()
            while place < end and left and left[-1] == blocks[place]:
                left.pop()
                place += 1
            self._size -= place - first
            if left:
                ends[left[-1]] = stretch
            else:
                self._unlist(stretch, self._starts, blocks[place - 1])
            if stretch.busy:
                busy += blocks[first:place]
            else:
                self.idle -= place - first
        return busy

    def fit(self, held: int) -> None:
        """Drop blocks in excess of `held`: an engine that evicts in another order leaves stale blocks here."""
        while self._size > held and self._idle:
            stretch = next(iter(self._idle))
            block = stretch.blocks[-1]
            if self._ends.get(block) is not stretch:  # shared end of two stretches
                self._ends[block] = stretch
            self.gone((block,))

    def cutoff(self, blocks: int) -> tuple[int, int]:
        """Return where the eviction of `blocks` idle blocks would end: the number of a use, and the rest of its
        stretch."""
        for stretch in self._idle:
            blocks -= len(stretch.blocks)
            if blocks < 0:
                return stretch.at, -blocks
        return self._next, 0

    def uses(self, hashes: Sequence[int], held: int) -> bool:
        """Return whether one request in flight uses all of the leading blocks."""
        stretch = self._starts.get(hashes[0])
        return (
            stretch is not None
            and stretch.busy
            and len(stretch.blocks) >= held
            and stretch.blocks[held - 1] == hashes[held - 1]
        )

    def kept(self, hashes: Sequence[int], held: int, cutoff: tuple[int, int]) -> int:
        """Count the leading blocks held now that would remain after evicting up to `cutoff`."""
        at, left = cutoff
        place = 0
        while place < held:
            stretch = self._starts.get(hashes[place])
            if stretch is None:
                return held
            same = common(stretch.blocks, hashes, place, held)
            if not stretch.busy and stretch.at <= at:
                if stretch.at < at:
                    return place
                if same > left:
                    return place + left
            place += same
        return held

    def _put(self, stretch: _Segment) -> None:
        blocks = stretch.blocks
        self._next += 1
        self._starts[blocks[0]] = self._ends[blocks[-1]] = stretch
        self._size += len(blocks)
        if not stretch.busy:
            self._idle[stretch] = None
            self.idle += len(blocks)

    def _shorten(self, stretch: _Segment, blocks: int) -> None:
        """Remove `blocks` blocks from the stretch's beginning."""
        del self._starts[stretch.blocks[0]]
        self._size -= blocks
        self.idle -= 0 if stretch.busy else blocks
        if blocks < len(stretch.blocks):
            del stretch.blocks[:blocks]
            self._starts[stretch.blocks[0]] = stretch
            return
        self._unlist(stretch, self._ends, stretch.blocks[-1])

    def _unlist(self, stretch: _Segment, by: dict[int, _Segment], block: int) -> None:
        """Remove a stretch from the maps, but keep another stretch that shares a block reported twice."""
        if by.get(block) is stretch:
            del by[block]
        self._idle.pop(stretch, None)
