"""The KV blocks of one engine with vLLM V1's prefix cache: a hash chain over full blocks, reference counts, and
eviction of blocks without content first, then of cached blocks by least recent use.

A block is *in use* (referenced), *cached* (free, with content that can be hit) or *blank* (free, no content).
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class OutOfBlocks(Exception):
    """More blocks were requested than are free; callers check `free` first."""


@dataclass(frozen=True, slots=True)
class Stored:
    hashes: tuple[int, ...]  # consecutive blocks of one chain; below HBM, any blocks
    parent: int | None  # hash of the block before them
    first: int  # index of the first block in its chain
    content: Any  # the request's own representation of its tokens
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class Removed:
    hashes: tuple[int, ...]
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


Event = Stored | Removed | Cleared


class Follower(Protocol):
    """Receives changes to the blocks that can be hit, by hash."""

    def stored(self, hashes: Sequence[int]) -> None:
        """Add consecutive blocks of a chain; some may have been there before."""

    def removed(self, hashes: Sequence[int]) -> None:
        """Remove hashes that no block holds any longer."""


class BlockPool:
    def __init__(self, blocks: int, *, record_events: bool = False) -> None:
        self.total = blocks
        self.free = blocks  # blocks not in use: blank or cached
        self._references: list[int] = []  # reference count of each block that was ever used
        self._hashes: list[int | None] = []
        self._blank: list[int] = []  # used blocks without content
        self._idle: OrderedDict[int, None] = OrderedDict()  # free blocks with content, least recently used first
        self._cached: dict[int, int] = {}  # hash -> a block that holds it
        self._copies: dict[int, list[int]] = {}  # hash -> other blocks with the same content
        self._record = record_events
        self._events: list[Event] = []
        self.evicting: Callable[[list[int]], None] | None = None  # called with content whose last copy will be reused
        self.follower: Follower | None = None

    @property
    def blank(self) -> int:
        """Return the number of blocks that can be allocated without evicting content."""
        return len(self._blank) + self.total - len(self._references)

    @property
    def usage(self) -> float:
        """Return the share of the blocks in use, 0–1."""
        return 1 - self.free / self.total

    def hit(self, chain: Sequence[int], limit: int) -> list[int]:
        """Return the blocks that hold the longest cached prefix of `chain`, at most `limit` of them."""
        find = self._cached.get
        found: list[int] = []
        for key in chain[:limit]:
            block = find(key)
            if block is None:
                break
            found.append(block)
        return found

    def holds(self, key: int) -> bool:
        return key in self._cached

    def held(self, chain: Sequence[int]) -> int:
        """Count the leading cached blocks of `chain` by a galloping search, because chains are evicted from their
        end."""
        cached, end = self._cached, len(chain)
        if not end or chain[0] not in cached:
            return 0
        low, step = 0, 1
        while low + step < end and chain[low + step] in cached:
            low += step
            step *= 2
        high = min(low + step, end)
        while high - low > 1:
            middle = (low + high) // 2
            if chain[middle] in cached:
                low = middle
            else:
                high = middle
        return high

    def idle_among(self, blocks: Sequence[int]) -> int:
        """Count the free blocks among these."""
        return [*map(self._references.__getitem__, blocks)].count(0)

    def take(self, blocks: Sequence[int]) -> None:
        """Reference cached blocks, which protects them from eviction."""
        references, idle = self._references, self._idle
        before = len(idle)
        for block in blocks:
            held = references[block]
            if not held:
                del idle[block]
            references[block] = held + 1
        self.free -= before - len(idle)

    def allocate(self, count: int) -> list[int]:
        """Allocate blocks for new tokens; evict cached content as needed. Raise OutOfBlocks."""
        if count > self.free:
            raise OutOfBlocks(f"{count} blocks requested, {self.free} of {self.total} free")
        self.free -= count
        blank = self._blank
        blocks = blank[: -count - 1 : -1]
        del blank[len(blank) - len(blocks) :]
        references = self._references
        used = len(references)
        if len(blocks) < count and used < self.total:
            first = min(count - len(blocks), self.total - used)
            blocks += range(used, used + first)
            references += [0] * first
            self._hashes += [None] * first
        if len(blocks) < count:
            blocks += self._evict(count - len(blocks))
        for block in blocks:
            references[block] = 1
        return blocks

    def store(self, blocks: Sequence[int], chain: Sequence[int], first: int, last: int, content: object = None) -> None:
        """Store blocks `first` to `last` - 1 of the chain, which are now full and can be hit."""
        cached, hashes = self._cached, self._hashes
        for index in range(first, last):
            block, key = blocks[index], chain[index]
            hashes[block] = key
            if cached.setdefault(key, block) != block:
                self._copies.setdefault(key, []).append(block)
        if self.follower is not None:
            self.follower.stored(chain[first:last])
        if self._record and last > first:
            parent = chain[first - 1] if first else None
            self._events.append(Stored(tuple(chain[first:last]), parent, first, content))

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block; a chain's tail becomes evictable before its head."""
        references, hashes, idle, blank = self._references, self._hashes, self._idle, self._blank
        before = len(idle) + len(blank)
        for block in reversed(blocks):
            references[block] = left = references[block] - 1
            if left:
                continue
            if hashes[block] is None:
                blank.append(block)
            else:
                idle[block] = None
        self.free += len(idle) + len(blank) - before

    def clear(self) -> bool:
        """Drop all cached content. As in vLLM, this is refused while any block is in use."""
        if self.free < self.total:
            return False
        for block in self._idle:
            self._hashes[block] = None
        self._blank += self._idle
        self._idle.clear()
        if self.follower is not None:
            self.follower.removed([*self._cached])
        self._cached.clear()
        self._copies.clear()
        if self._record:
            self._events.append(Cleared())
        return True

    def record(self, event: Event) -> None:
        """Record an event of a lower tier."""
        if self._record:
            self._events.append(event)

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _evict(self, count: int) -> list[int]:
        idle, hashes, cached, copies = self._idle, self._hashes, self._cached, self._copies
        blocks: list[int] = []
        gone: list[int] = []
        last: list[int] = []  # hashes that no block holds any longer
        for _ in range(count):
            block, _ = idle.popitem(last=False)
            key = hashes[block]
            assert key is not None  # noqa: S101 - narrows the type: idle blocks have content
            hashes[block] = None
            blocks.append(block)
            gone.append(key)
            if key in copies:
                self._forget(key, block)
            else:
                del cached[key]
                last.append(key)
        if self.evicting is not None:
            self.evicting(last)
        if self.follower is not None:
            self.follower.removed(last)
        # vLLM reports each evicted copy, even if another block has the same content.
        if self._record:
            self._events.append(Removed(tuple(gone)))
        return blocks

    def _forget(self, key: int, block: int) -> None:
        """Forget one of several blocks with the same content."""
        copies = self._copies[key]
        if self._cached[key] == block:
            self._cached[key] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[key]
