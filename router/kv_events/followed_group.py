"""Picks the events that tell what is cached: of several groups of layers those of the first with full attention. Pure.

Every later token needs all blocks of such a group. A hit may need more than that where other groups keep a window or a
state.
"""

from router.kv_events.batch import BlocksRemoved, BlocksStored
from router.prefix.exact.index import DEVICE

_NONE = "all layers of its model keep a window or a state only: what a hit needs is not followed"


class FollowedGroup:
    """The followed group of one connection to an engine."""

    __slots__ = ("_known", "_number", "block_size", "trouble")

    def __init__(self) -> None:
        self._number: int | None = None
        self._known = False
        self.block_size = 0  # tokens; 0 before its first event
        self.trouble = ""  # why nothing can be followed

    def takes(self, event: BlocksStored) -> bool:
        """Whether the event tells of the followed group. What is said of other tiers may name no group."""
        if event.tier != DEVICE:
            return event.whole and event.group in (None, self._number)
        if not self._known:
            self._learn(event)
        if not event.whole or event.group != self._number:
            return False
        if event.tokens:
            # Of a block that is partly full (Mamba's) vLLM names the latest part. LMCache's chunks are no blocks.
            self.block_size = max(self.block_size, event.block_size)
        return True

    def loses(self, event: BlocksRemoved) -> bool:
        return event.group in (None, self._number)

    def _learn(self, event: BlocksStored) -> None:
        self._known = event.whole
        self._number = event.group if event.whole else None
        self.trouble = "" if event.whole else _NONE
