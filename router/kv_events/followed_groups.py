"""Sorts an engine's events by its groups of layers: the first with full attention, and what a hit needs of all others.

The first one's blocks carry the tokens. Those of further groups have the same names where they end at the same token,
so the name tells the position, whichever blocks an engine leaves out. A model without full attention is followed where
its events leave none out. Pure.
"""

import math

from router.kv_events.batch import UNTOLD, BlocksRemoved, BlocksStored
from router.prefix.blocks import TOKEN_BYTES
from router.prefix.exact.groups import GroupNeed, GroupNeeds
from router.prefix.exact.holders import FURTHER
from router.prefix.exact.index import DEVICE

MOST = 32  # further groups
_SPARSE = "all layers of its model keep a window or a state only, and its events do not say of which blocks"
_UNTOLD = "some layers of its model keep a window or a state, and its events do not say how long"
CHUNKS = "the end of a chunk of attention, where more is cached than predicted"
_MANY = f"its model has more than {MOST} groups of layers"


class FollowedGroups:
    """Of one connection to an engine."""

    def __init__(self, chunk: int = 0) -> None:
        """`chunk`: tokens in a chunk of its model's attention, where that is known."""
        self._chunk = chunk
        self._first: int | None = None
        self._known = False
        self._further: dict[int | None, int] = {}  # its position among the further ones, by number
        # By position: tokens that it looks back, tokens in its block, tokens in its chunk
        self._backs: list[tuple[int, int, int]] = []
        self.block_size = 0  # tokens; 0 before its first event
        self.trouble = ""  # why nothing can be followed
        self.but_for = ""  # what is not known
        self.needs = GroupNeeds()

    def is_first(self, event: BlocksStored) -> bool:
        """Whether the event tells of the first group. What is said of other tiers may name no group."""
        if event.tier != DEVICE:
            return event.whole and event.group in (None, self._first)
        if event.whole and not self._known:
            self._known, self._first, self.trouble = True, event.group, ""
            self.needs = GroupNeeds(self.needs.needs)
        if event.group != self._first or not event.whole:
            return False
        if event.tokens and event.block_size > self.block_size:
            # Of a block that is partly full (Mamba's) vLLM names the latest part. LMCache's chunks are no blocks.
            self.block_size = event.block_size
            self._learn()
        return True

    def further(self, event: BlocksStored) -> int | None:
        """Where the event's blocks go that are another group's; None: nowhere."""
        if event.tier != DEVICE or event.looks_back is None or not event.tokens:
            return None
        if event.looks_back == UNTOLD:
            self.trouble = _UNTOLD
            return None
        if not self._known and not self._is_dense(event):
            return None
        chunk = self._chunk if event.chunked else 0
        if event.chunked and not chunk:
            self.but_for = CHUNKS
        position = self._further.get(event.group)
        if position is None:
            if len(self._further) == MOST:
                self.trouble = _MANY
                return None
            position = self._further[event.group] = len(self._further)
            self._backs.append((event.looks_back, 0, 0))
        if event.block_size > self._backs[position][1]:
            self._backs[position] = (event.looks_back, event.block_size, chunk)
            self._learn()
        return FURTHER + position

    def _is_dense(self, event: BlocksStored) -> bool:
        """A model without full attention whose events leave out no block."""
        if len(event.tokens) != len(event.names) * event.block_size * TOKEN_BYTES:
            self.trouble = _SPARSE
            return False
        self.block_size = max(self.block_size, event.block_size)
        return True

    def place(self, event: BlocksRemoved) -> int | None:
        """Where the blocks are that the event removes; None: they are not followed."""
        if event.tier != DEVICE:
            return event.tier if event.group in (None, self._first) else None
        position = self._further.get(event.group)
        if position is not None:
            return FURTHER + position
        return DEVICE if event.group in (None, self._first) else None

    def _learn(self) -> None:
        needs = []
        own = self.block_size or 1
        for back, size, chunk in self._backs:
            step = math.lcm(size, self.block_size) // own or 1
            needs.append(GroupNeed(-(-back // (step * own)), step, 0 if chunk % own else chunk // own))
        self.needs = GroupNeeds(tuple(needs), self._known)
