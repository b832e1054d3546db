"""The assignment of an engine's events to its groups of layers: the first group with full attention, and the others.
The blocks of the first group carry the tokens. Blocks of further groups have the same names if they end at the same
token, so a name gives the position even if the engine omits other blocks. A model without full attention is followed
only if its events leave out no block. Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from router.kv_events.batch import UNTOLD, BlocksRemoved, BlocksStored
from router.prefix.blocks import TOKEN_BYTES
from router.prefix.exact.groups import GroupNeed, GroupNeeds
from router.prefix.exact.holders import FURTHER
from router.prefix.exact.index import DEVICE

MOST = 32  # further groups
MOST_PARTS = 64  # parts of a block; each part is hashed for each prompt
_SPARSE = "all layers of its model keep a window or a state only, and its events do not say for which blocks"
_UNTOLD = "some layers of its model keep a window or a state, and its events do not say how long"
_HOSTED = "its layers with full attention keep their blocks in host memory (vLLM's HiSparse), which is not followed"
CHUNKS = "the end of a chunk of attention, where more is cached than predicted"
SALTS = "salted prompts in LMCache, whose events name no salt"
_PART = 0x9E3779B97F4A7C15  # odd, so that parts of different names rarely collide
_WORD = (1 << 64) - 1
_MANY = f"its model has more than {MOST} groups of layers"


class FollowedGroups:
    """The groups of one connection to an engine."""

    def __init__(self, chunk: int = 0) -> None:
        """`chunk` is the number of tokens in a chunk of the model's attention, if known."""
        self._chunk = chunk
        self._first: int | None = None
        self._known = False
        self._further: dict[int | None, int] = {}  # position among the further groups, by number
        # By position: tokens of its window, in its block, in its chunk, and whether it may be a drafter's
        self._backs: list[tuple[int, int, int, bool]] = []
        self._sparse: set[int] = set()  # positions of groups whose events leave out blocks
        self.block_size = 0  # tokens; 0 before its first event
        self.trouble = ""  # why no events can be followed
        self.but_for = ""  # kinds of request that the events do not cover
        self.needs = GroupNeeds()
        self.names_layers = True
        self.ahead = 0  # tokens after a block that its name covers
        self._parts = 1  # number of engine blocks in a chunk that one event names as a single block, as LMCache's do
        self._chunk_blocks = 0  # number of blocks that are offloaded and loaded together

    @property
    def unit(self) -> int:
        """Return the number of tokens whose multiples end a hit below the device; 0 if a hit can end at any block."""
        return self._chunk_blocks * self.block_size if self._chunk_blocks > 1 else 0

    def is_first(self, event: BlocksStored) -> bool:
        """Return whether the event is about the first group; events of other tiers may name no group."""
        if event.tier != DEVICE:
            first = event.whole and event.group in (None, self._first)
            if first and event.tokens and (event.looks_back is not None or self._splits(event)):
                own = event.block_size // self.block_size if self._splits(event) else 1
                self._chunk_blocks = math.gcd(self._chunk_blocks, len(event.names) * own)
            elif not self._known and event.whole and event.tokens and event.looks_back is not None:
                self.trouble = _HOSTED  # until a block of that group is on the device
            return first
        if event.whole and not self._known:
            self.names_layers = event.looks_back is not None
            self._known, self._first, self.trouble = True, event.group, ""
            self.needs = GroupNeeds(self.needs.needs)
        if event.group != self._first or not event.whole:
            return False
        if event.tokens:
            self.ahead = event.ahead
        if event.tokens and event.block_size > self.block_size:
            # vLLM names the latest part of a partly full block (Mamba). LMCache's chunks differ from blocks.
            self.block_size = event.block_size
            self._learn()
        return True

    def in_blocks(self, event: BlocksStored) -> BlocksStored:
        """Convert an event that names LMCache's chunks, which contain several blocks each, to the engine's blocks."""
        if event.tier == DEVICE or not self._splits(event):
            return event
        self._parts = event.block_size // self.block_size
        self.but_for = self.but_for or SALTS
        extras = [extra for extra in event.extras for _ in range(self._parts)]
        return structs.replace(event, names=self._parted(event.names), block_size=self.block_size, extras=extras)

    def names(self, event: BlocksRemoved) -> Sequence[int] | Mapping[int, int]:
        """Return the names of the removed blocks; a chunk is replaced by its blocks."""
        return event.names if event.tier == DEVICE or self._parts == 1 else self._parted(event.names)

    def _splits(self, event: BlocksStored) -> bool:
        own = self.block_size
        return bool(own and event.tokens) and event.block_size > own and event.block_size % own == 0

    def _parted(self, names: Iterable[int]) -> list[int]:
        """Return a name for each block of a chunk. The last block keeps the chunk's name, which the next chunk names as
        its parent."""
        before = range(self._parts - 1, 0, -1)
        return [part for name in names for part in (*((name ^ number * _PART & _WORD) or 1 for number in before), name)]

    def further(self, event: BlocksStored) -> int | None:
        """Return the place for blocks of another group; None if they are not followed."""
        if event.tier != DEVICE or event.looks_back is None or not event.tokens:
            return None
        if event.looks_back == UNTOLD:
            self.trouble = _UNTOLD
            return None
        if not self._known and not self._is_dense(event):
            return None
        position = self._further.get(event.group)
        if position is None:
            if len(self._further) == MOST:
                self.trouble = _MANY
                return None
            position = self._further[event.group] = len(self._further)
            self._backs.append((event.looks_back, 0, 0, False))
        self._take_need(position, event, event.looks_back)
        return FURTHER + position

    def _take_need(self, position: int, event: BlocksStored, back: int) -> None:
        """Note the needs of a further group's layers from its event. `back`: the tokens of its window."""
        if event.block_size > self._backs[position][1]:
            chunk = self._chunk if event.chunked else 0
            if event.chunked and not chunk:
                self.but_for = CHUNKS
            # Neither a recurrent state nor chunked attention, both of which exclude speculation
            drafts = event.whole or back > 1
            self._backs[position] = (back, event.block_size, chunk, drafts)
            self._learn()
        if self.in_parts(FURTHER + position) and not _names_all(event):
            self._sparse.add(position)
            self._learn()

    def in_parts(self, place: int) -> bool:
        """Return whether the blocks at this place are parts of blocks of the first group."""
        return place >= FURTHER and self.needs.needs[place - FURTHER].parts > 1

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the size, in tokens, of blocks that are parts of blocks of the first group."""
        return tuple(sorted({self.block_size // need.parts for need in self.needs.needs if need.parts > 1}))

    def _is_dense(self, event: BlocksStored) -> bool:
        """Return whether events leave out no block, which a model without full attention requires."""
        if not _names_all(event):
            self.trouble = _SPARSE
            return False
        self.block_size, self.ahead = max(self.block_size, event.block_size), event.ahead
        return True

    def place(self, event: BlocksRemoved) -> int | None:
        """Return the place of the removed blocks; None if they are not followed."""
        if event.tier != DEVICE:
            return event.tier if event.group in (None, self._first) else None
        position = self._further.get(event.group)
        if position is not None:
            return FURTHER + position
        return DEVICE if event.group in (None, self._first) else None

    def _learn(self) -> None:
        needs = []
        own = self.block_size or 1
        for position, (back, size, chunk, drafts) in enumerate(self._backs):
            step = math.lcm(size, self.block_size) // own or 1
            parts = own // size if size and not own % size and position not in self._sparse else 1
            parts = parts if parts <= MOST_PARTS else 1
            blocks = -(-back * parts // (step * own))
            needs.append(GroupNeed(blocks, step, 0 if chunk % own else chunk // own, drafts, parts))
        self.needs = GroupNeeds(tuple(needs), self._known)


def _names_all(event: BlocksStored) -> bool:
    """Return whether an event leaves out none of the blocks that its tokens fill."""
    return len(event.tokens) == len(event.names) * event.block_size * TOKEN_BYTES
