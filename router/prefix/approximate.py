"""Which instance holds how much of a prompt, as far as the router can know from what it has sent where.

One map, chunk hash → bit mask of the instances that hold it, answers for all instances together; a dict per instance
keeps the order of use. Both rest on one invariant: **what an instance holds is closed under prefix** (who holds a chunk
holds all before it), because a chain is always used from its head, and its head counts as used after its tail, so that
the least recently used chunk is always the end of a chain. Along a prompt the masks can therefore only lose bits, and
the places where they do are found by bisection instead of one look-up per chunk.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import compress, islice, repeat

_FLAGS = bytes.maketrans(b"01", b"\x00\x01")

SPARE_SHARE = 16  # evicting goes 1/16 below the limit, so that it is done in batches
SLACK_SHARE = 8  # a report 1/8 below what was predicted is rounding (blocks, bytes per token), not eviction
GROWTH_SHARE = 256  # a correct prediction gives 1/256 of the limit back


class _Shelf:
    """What one instance holds."""

    __slots__ = ("bit", "chunks", "epoch", "limit", "promised", "room", "slot")

    def __init__(self, slot: int, epoch: int, limit: int) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.epoch = epoch
        self.chunks: dict[int, None] = {}  # least recently used first
        self.limit = limit  # what its KV can hold
        self.room = limit  # what it has been seen to hold: lowered by corrections
        self.promised: dict[int, int] = {}  # last chunk of a request under way: chunks held when it was sent


class PrefixIndex:
    """Approximate prefix index over the instances of a pool; every size is in chunks."""

    def __init__(self, max_chunks: int = 4_000_000, instance_chunks: int = 65_536) -> None:
        """`max_chunks`: entries of all instances together, shared out evenly; about 150 bytes each (bench/decide.py).
        `instance_chunks`: the limit of an instance until `limit` says better."""
        self._max_chunks = max_chunks
        self._instance_chunks = instance_chunks
        self._holders: dict[int, int] = {}
        self._shelves: dict[str, _Shelf] = {}
        self._names: list[str] = []  # by slot; a free slot keeps its last name
        self._free: list[int] = []
        self._limits: dict[str, int] = {}

    def match(self, hashes: Sequence[int]) -> dict[str, int]:
        """How many leading chunks each instance holds; instances that hold none are left out."""
        found: dict[str, int] = {}
        get = self._holders.get
        start, mask = 0, get(hashes[0], 0) if hashes else 0
        while mask:
            after = self._end_of_run(hashes, start, mask)
            following = get(hashes[after], 0) & mask if after < len(hashes) else 0
            found |= dict.fromkeys(self._named(mask ^ following), after)
            start, mask = after, following
        return found

    def insert(self, instance: str, epoch: int, hashes: Sequence[int]) -> int:
        """The instance is computing this prompt, so it holds all of it: how many chunks it held before.

        A newer epoch means that the engine has started again and holds nothing else; an older one is not taken.
        """
        shelf = self._shelf(instance, epoch)
        if shelf is None or not hashes:
            return 0
        room = self._room(shelf)
        kept = hashes[:room]
        held = self._held(shelf, kept)
        # Of the same prompt twice at once the second may still find nothing: the smaller promise is the one to check.
        shelf.promised[hashes[-1]] = min(held, shelf.promised.get(hashes[-1], held))
        if len(shelf.promised) > room:  # requests that were never answered
            del shelf.promised[next(iter(shelf.promised))]
        deque(map(shelf.chunks.pop, kept[:held], repeat(None)), maxlen=0)
        shelf.chunks.update(dict.fromkeys(reversed(kept)))  # the tail is used first, the head last
        self._mark(shelf.bit, kept[held:])
        if len(shelf.chunks) > room:
            self._evict(shelf, room - room // SPARE_SHARE)
        return held

    def correct(self, instance: str, hashes: Sequence[int], cached_chunks: int) -> int:
        """Learn from what the engine had cached of a prompt when it came; call with the answer. How many chunks go.

        The prompt itself is held by now: the engine has just computed it. That less than predicted was cached says that
        the engine evicts earlier than assumed, so the chunks used longest ago go, as many as were missing, and that
        much less is believed from now on. Predictions that come true give the room back bit by bit.
        """
        shelf = self._shelves.get(instance)
        if shelf is None or not hashes:
            return 0
        predicted = shelf.promised.pop(hashes[-1], None)
        if predicted is None:
            predicted = self._held(shelf, hashes)
        if cached_chunks + predicted // SLACK_SHARE >= predicted:
            shelf.room = min(shelf.limit, shelf.room + shelf.limit // GROWTH_SHARE + 1)
            return 0
        before = len(shelf.chunks)
        shelf.room = max(1, min(shelf.room, before) - (predicted - cached_chunks))
        self._evict(shelf, shelf.room)
        return before - len(shelf.chunks)

    def limit(self, instance: str, chunks: int) -> None:
        """What the instance's KV can hold, all its tiers together. Kept across restarts."""
        if self._limits.get(instance) == chunks:
            return
        self._limits[instance] = chunks
        shelf = self._shelves.get(instance)
        if shelf is not None:
            # What corrections have taken off stays off: the limit follows a slowly learned ratio of bytes to tokens.
            shelf.room = max(1, min(chunks, shelf.room + chunks - shelf.limit))
            shelf.limit = chunks
            self._evict(shelf, self._room(shelf))

    def purge(self, instance: str) -> None:
        """The instance holds nothing any more: it restarted, its cache was reset, or it is gone."""
        shelf = self._shelves.pop(instance, None)
        if shelf is not None:
            self._evict(shelf, 0)
            self._free.append(shelf.slot)

    def chunks(self, instance: str) -> int:
        """How many chunks the instance is believed to hold."""
        shelf = self._shelves.get(instance)
        return len(shelf.chunks) if shelf is not None else 0

    def __len__(self) -> int:
        """Different chunks held by anybody."""
        return len(self._holders)

    def _shelf(self, instance: str, epoch: int) -> _Shelf | None:
        shelf = self._shelves.get(instance)
        if shelf is not None and epoch < shelf.epoch:
            return None  # a late word from a life that is over
        if shelf is not None and epoch > shelf.epoch:
            self.purge(instance)
            shelf = None
        return shelf if shelf is not None else self._new_shelf(instance, epoch)

    def _new_shelf(self, instance: str, epoch: int) -> _Shelf:
        if self._free:
            slot = self._free.pop()
            self._names[slot] = instance
        else:
            slot = len(self._names)
            self._names.append(instance)
        shelf = _Shelf(slot, epoch, self._limits.get(instance, self._instance_chunks))
        self._shelves[instance] = shelf
        return shelf

    def _room(self, shelf: _Shelf) -> int:
        return min(shelf.room, max(1, self._max_chunks // len(self._shelves)))

    def _named(self, mask: int) -> Iterator[str]:
        """The instances of a mask; in C, since a thousand of them may share a system prompt."""
        return compress(self._names, f"{mask:b}"[::-1].encode().translate(_FLAGS))

    def _end_of_run(self, hashes: Sequence[int], start: int, mask: int) -> int:
        """The first place after `start` where not all of `mask` hold the chunk: steps that double, then bisection."""
        get = self._holders.get
        low, step, end = start, 1, len(hashes)
        while low + step < end and get(hashes[low + step], 0) & mask == mask:
            low += step
            step *= 2
        high = min(low + step, end)
        while high - low > 1:
            middle = (low + high) // 2
            if get(hashes[middle], 0) & mask == mask:
                low = middle
            else:
                high = middle
        return high

    def _held(self, shelf: _Shelf, hashes: Sequence[int]) -> int:
        """How many leading chunks the instance holds."""
        if not hashes or hashes[0] not in shelf.chunks:
            return 0
        return self._end_of_run(hashes, 0, shelf.bit)

    def _mark(self, bit: int, fresh: Sequence[int]) -> None:
        """The instance holds these from now on. What nobody holds ends the chain for everybody, so the rest is new."""
        holders = self._holders
        known = 0
        for chunk in fresh:
            mask = holders.get(chunk)
            if mask is None:
                break
            holders[chunk] = mask | bit
            known += 1
        holders.update(dict.fromkeys(fresh[known:], bit))

    def _evict(self, shelf: _Shelf, size: int) -> None:
        """Down to so many chunks, the least recently used first."""
        holders, chunks, others = self._holders, shelf.chunks, ~shelf.bit
        for chunk in list(islice(chunks, max(len(chunks) - size, 0))):
            del chunks[chunk]
            # XXH64 can be made to collide on purpose, which breaks the invariant: a guess may be wrong then, no more.
            mask = holders.get(chunk, 0) & others
            if mask:
                holders[chunk] = mask
            else:
                holders.pop(chunk, None)
