"""Which instance holds how much of a prompt, as far as the router can know from what it has sent where.

What all hold together is kept in runs (forest.py), what each has used when in stretches of the prompts that went to it.
Both rest on one invariant: **what an instance holds is closed under prefix** (who holds a chunk holds all before it),
because a chain is always used from its head, and its head counts as used after its tail, so that the least recently
used chunk is always the end of a chain. So of an earlier prompt only an end can be older than what came since, and a
prompt costs as many steps as it has runs, whatever its length.
"""

from collections.abc import Sequence
from itertools import compress, islice

from router.prefix.forest import Forest, Path, SharedRun, at, parting

_FLAGS = bytes.maketrans(b"01", b"\x00\x01")

MASKS_KEPT = 256
SPARE_SHARE = 16  # evicting goes 1/16 below the limit, so that it is done in batches
SLACK_SHARE = 8  # a report 1/8 below what was predicted is rounding (blocks, bytes per token), not eviction


class _Stretch:
    """The end of a prompt that an instance has not used again since."""

    __slots__ = ("end", "first", "run", "start")

    def __init__(self, start: int, end: int, first: int, run: SharedRun) -> None:
        self.start = start
        self.end = end
        self.first = first  # hash of its first chunk
        self.run = run  # leads to the run of its last chunk (forest.at)


class _EvictionOrder:
    """What one instance holds."""

    __slots__ = ("bit", "epoch", "limit", "promised", "size", "slot", "starts", "stretches")

    def __init__(self, slot: int, epoch: int, limit: int) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.epoch = epoch
        self.size = 0
        self.stretches: dict[_Stretch, None] = {}  # least recently used first, and of each the end first
        self.starts: dict[int, _Stretch] = {}  # by first hash
        self.limit = limit  # what its KV can hold
        self.promised: dict[int, int] = {}  # last chunk of a request under way: chunks held when it was sent

    def use(self, hashes: Sequence[int], held: int, path: Path) -> None:
        """All of the chain is the newest now; of what it has held of it before, stretches get shorter or go."""
        walked = dict(path)
        place = 0
        while place < held:
            stretch = self.starts.get(hashes[place])
            if stretch is None or stretch.start != place:
                break  # hashes have been made to collide
            upto = parting(stretch.run, stretch.end, walked)
            place = held if upto > held else upto if upto > place else place + 1
            self.shorten(stretch, place)
        newest = _Stretch(0, len(hashes), hashes[0], path[-1][0])
        self.stretches[newest] = None
        self.starts[newest.first] = newest
        self.size += newest.end

    def shorten(self, stretch: _Stretch, start: int) -> None:
        """What is left of it begins there, if anything is."""
        self.unlist(stretch)
        run = at(stretch.run, start + 1) if start < stretch.end else None
        if run is None or start >= run.end:
            self.size -= stretch.end - stretch.start
            del self.stretches[stretch]
            return
        self.size -= start - stretch.start
        stretch.start, stretch.first = start, run.hashes[start - run.start]
        self.starts[stretch.first] = stretch

    def unlist(self, stretch: _Stretch) -> None:
        if self.starts.get(stretch.first) is stretch:
            del self.starts[stretch.first]


class PrefixIndex:
    """Approximate prefix index over the instances of a pool; every size is in chunks."""

    def __init__(
        self, max_chunks: int = 4_000_000, instance_chunks: int = 65_536, max_stretches: int = 500_000
    ) -> None:
        """`max_chunks`: of all instances together, shared out evenly, about 10 bytes each; `max_stretches`: the same of
        prompts that went different ways, about 700 bytes each (bench/decide.py). `instance_chunks`: the limit of an
        instance until `limit` says better."""
        self.max_chunks = max_chunks
        self.max_stretches = max_stretches
        self._instance_chunks = instance_chunks
        self._runs = Forest()
        self._shelves: dict[str, _EvictionOrder] = {}
        self._names: list[str] = []  # by slot; a free slot keeps its last name
        self._free: list[int] = []
        self._named_before: dict[int, list[str]] = {}
        self._limits: dict[str, int] = {}

    def match(self, hashes: Sequence[int]) -> dict[str, int]:
        """How many leading chunks each instance holds; instances that hold none are left out."""
        found: dict[str, int] = {}
        place, mask = 0, -1
        for run, upto in self._runs.along(hashes):
            following = run.holders & mask
            if place and following != mask:
                found |= dict.fromkeys(self._named(mask ^ following), place)
            mask = following
            if not mask:
                return found
            place = upto
        if place:
            found |= dict.fromkeys(self._named(mask), place)
        return found

    def insert(self, instance: str, epoch: int, hashes: Sequence[int]) -> int:
        """The instance is computing this prompt, so it holds all of it: how many chunks it held before.

        A newer epoch means that the engine has started again and holds nothing else; an older one is not taken.
        """
        eviction = self._eviction(instance, epoch)
        if eviction is None or not hashes:
            return 0
        room = self._room(eviction)
        kept = hashes[:room] if len(hashes) > room else hashes
        path = self._runs.along(kept)
        held = _held(path, eviction.bit)
        # Of the same prompt twice at once the second may still find nothing: the smaller promise is the one to check.
        promised = eviction.promised.get(hashes[-1])
        if promised is None or held < promised:
            eviction.promised[hashes[-1]] = held
        if len(eviction.promised) > room:  # requests that were never answered
            del eviction.promised[next(iter(eviction.promised))]
        eviction.use(kept, held, self._runs.hold(eviction.bit, kept, path))
        if eviction.size > room:
            self._evict(eviction, room - room // SPARE_SHARE)
        self._evict_stretches(eviction)
        return held

    def correct(self, instance: str, hashes: Sequence[int], cached_chunks: int) -> int:
        """Learn from what the engine had cached of a prompt when it came; call with the answer. How many chunks go.

        The prompt itself is held by now: the engine has just computed it. That less than predicted was cached says that
        the engine has evicted more than assumed, so the chunks used longest ago go, as many as were missing. No more
        than that: an engine that is taken to hold less than it does loses sessions that it has the KV of, which costs
        more than a prompt that is computed where it was not expected to be.
        """
        eviction = self._shelves.get(instance)
        if eviction is None or not hashes:
            return 0
        predicted = eviction.promised.pop(hashes[-1], None)
        if predicted is None:
            predicted = _held(self._runs.along(hashes), eviction.bit)
        if cached_chunks + predicted // SLACK_SHARE >= predicted:
            return 0
        before = eviction.size
        self._evict(eviction, max(1, before - (predicted - cached_chunks)))
        return before - eviction.size

    def limit(self, instance: str, chunks: int) -> None:
        """What the instance's KV can hold, all its tiers together. Kept across restarts."""
        if self._limits.get(instance) == chunks:
            return
        self._limits[instance] = chunks
        eviction = self._shelves.get(instance)
        if eviction is not None:
            eviction.limit = chunks
            self._evict(eviction, self._room(eviction))

    def purge(self, instance: str) -> None:
        """The instance holds nothing any more: it restarted, its cache was reset, or it is gone."""
        eviction = self._shelves.pop(instance, None)
        if eviction is not None:
            self._evict(eviction, 0)
            self._free.append(eviction.slot)

    def chunks(self, instance: str) -> int:
        """How many chunks the instance is believed to hold."""
        eviction = self._shelves.get(instance)
        return eviction.size if eviction is not None else 0

    @property
    def stretches(self) -> int:
        """Of all instances together; `max_stretches` at most."""
        return sum(len(eviction.stretches) for eviction in self._shelves.values())

    @property
    def copies(self) -> int:
        """Chunks of all instances together, each counted for each that holds it; `max_chunks` at most."""
        return sum(eviction.size for eviction in self._shelves.values())

    def __len__(self) -> int:
        """Different chunks held by anybody."""
        return self._runs.chunks

    def _eviction(self, instance: str, epoch: int) -> _EvictionOrder | None:
        eviction = self._shelves.get(instance)
        if eviction is not None and epoch < eviction.epoch:
            return None  # a late word from a life that is over
        if eviction is not None and epoch > eviction.epoch:
            self.purge(instance)
            eviction = None
        return eviction if eviction is not None else self._new_shelf(instance, epoch)

    def _new_shelf(self, instance: str, epoch: int) -> _EvictionOrder:
        if self._free:
            slot = self._free.pop()
            self._names[slot] = instance
        else:
            slot = len(self._names)
            self._names.append(instance)
        self._named_before.clear()
        eviction = _EvictionOrder(slot, epoch, self._limits.get(instance, self._instance_chunks))
        self._shelves[instance] = eviction
        return eviction

    def _room(self, eviction: _EvictionOrder) -> int:
        share = self.max_chunks // len(self._shelves) or 1
        return eviction.limit if eviction.limit < share else share

    def _named(self, mask: int) -> list[str]:
        """The instances of a mask; kept, since a thousand of them may share a system prompt."""
        named = self._named_before.get(mask)
        if named is None:
            if len(self._named_before) >= MASKS_KEPT:
                self._named_before.clear()
            named = list(compress(self._names, f"{mask:b}"[::-1].encode().translate(_FLAGS)))
            self._named_before[mask] = named
        return named

    def _evict(self, eviction: _EvictionOrder, size: int) -> None:
        """Down to so many chunks, the least recently used first."""
        while eviction.size > size:
            stretch = next(iter(eviction.stretches))
            low = max(stretch.start, stretch.end - (eviction.size - size))
            self._forget(eviction, stretch, low)

    def _evict_stretches(self, eviction: _EvictionOrder) -> None:
        room = self.max_stretches // len(self._shelves) or 1
        if len(eviction.stretches) > room:
            for stretch in list(islice(eviction.stretches, len(eviction.stretches) - room + room // SPARE_SHARE)):
                self._forget(eviction, stretch, stretch.start)

    def _forget(self, eviction: _EvictionOrder, stretch: _Stretch, low: int) -> None:
        """The stretch ends there from now on."""
        run = self._runs.forget(eviction.bit, stretch.run, low, stretch.end)
        eviction.size -= stretch.end - low
        if low > stretch.start:
            stretch.end, stretch.run = low, run
        else:
            eviction.unlist(stretch)
            del eviction.stretches[stretch]


def _held(path: Path, bit: int) -> int:
    """How many leading chunks the instance holds."""
    held = 0
    for run, upto in path:
        if not run.holders & bit:
            break
        held = upto
    return held
