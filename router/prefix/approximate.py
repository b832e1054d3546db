"""Approximate prefix index: the part of a prompt that each instance holds, derived from the prompts sent there. The
chunks of all instances are kept in runs (forest.py), each instance's order of use in stretches of its prompts. Both
depend on one invariant: **the chunks of an instance are closed under prefix** (an instance that holds a chunk holds all
chunks before it). A chain is always used from its head, and its head counts as used after its tail, so the least
recently used chunk is always the end of a chain. Only the end of an earlier prompt can therefore be older than later
prompts, and a prompt costs as many steps as it has runs, whatever its length.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from sys import maxsize
from typing import Final

from router.policy.held import HeldByLevel, named
from router.prefix.forest import Forest, Path, SharedRun, at, parting

MASKS_KEPT = 256
FEW: Final = 64  # instances; with fewer, a dict of tokens is cheaper than levels
SPARE_SHARE = 16  # eviction continues to 1/16 below the limit, in batches
# A report up to 1/8 below the prediction is due to rounding (blocks, bytes per token), not to eviction
SLACK_SHARE: Final = 8


class _Stretch:
    """The end of a prompt that has not been used since."""

    __slots__ = ("end", "first", "run", "start")

    def __init__(self, start: int, end: int, first: int, run: SharedRun) -> None:
        self.start = start
        self.end = end
        self.first = first  # hash of the first chunk
        self.run = run  # run from which forest.at finds the last chunk


class _EvictionOrder:
    """The chunks that one instance holds."""

    __slots__ = ("bit", "epoch", "limit", "promised", "size", "slot", "starts", "stretches")

    def __init__(self, slot: int, epoch: int, limit: int) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.epoch = epoch
        self.size = 0
        self.stretches: dict[_Stretch, None] = {}  # least recently used first; each is evicted from its end
        self.starts: dict[int, _Stretch] = {}  # by first hash
        self.limit = limit  # chunks that its KV can hold
        self.promised: dict[int, int] = {}  # last chunk of a request in flight → chunks held when it was sent

    def use(self, hashes: Sequence[int], held: int, path: Path) -> None:
        """Make the whole chain the newest. Stretches among its `held` chunks shrink or disappear."""
        walked = dict(path)
        position = 0
        while position < held:
            stretch = self.starts.get(hashes[position])
            if stretch is None or stretch.start != position:
                break  # possible only for crafted prompts with colliding hashes
            upto = parting(stretch.run, stretch.end, walked)
            position = held if upto > held else upto if upto > position else position + 1
            self.shorten(stretch, position)
        newest = _Stretch(0, len(hashes), hashes[0], path[-1][0])
        self.stretches[newest] = None
        self.starts[newest.first] = newest
        self.size += newest.end

    def shorten(self, stretch: _Stretch, start: int) -> None:
        """Let the stretch begin at `start`, or remove it."""
        if self.starts.get(stretch.first) is stretch:
            del self.starts[stretch.first]
        run = at(stretch.run, start + 1) if start < stretch.end else None
        if run is None or start >= run.start + len(run.hashes):
            self.size -= stretch.end - stretch.start
            del self.stretches[stretch]
            return
        self.size -= start - stretch.start
        stretch.start, stretch.first = start, run.hashes[start - run.start]
        self.starts[stretch.first] = stretch

    def unlist(self, stretch: _Stretch) -> None:
        if self.starts.get(stretch.first) is stretch:
            del self.starts[stretch.first]


_NOBODY: Final = SharedRun(0, array("Q"), 0, None), 0  # ends every path


class PrefixIndex:
    """Approximate prefix index over the instances of a pool; every size is in chunks."""

    def __init__(
        self, max_chunks: int = 4_000_000, instance_chunks: int = 65_536, max_stretches: int = 500_000
    ) -> None:
        """`max_chunks` is the limit over all instances, which share it evenly; a chunk takes about 10 bytes.
        `max_stretches` is the limit of diverged prompts, at about 700 bytes each (bench/decide.py). `instance_chunks`
        is an instance's limit until `limit` is called."""
        self.max_chunks = max_chunks
        self.max_stretches = max_stretches
        self._instance_chunks = instance_chunks
        self._runs = Forest()
        self._evictions: dict[str, _EvictionOrder] = {}
        self._names: list[str] = []  # by slot; a free slot keeps its last name
        self._bits: dict[str, int] = {}  # by name
        self._free: list[int] = []
        self._named_before: dict[int, list[str]] = {}
        self._limits: dict[str, int] = {}

    def match(self, hashes: Sequence[int]) -> dict[str, int]:
        """Return the leading chunks held by each instance; instances without any are omitted."""
        found: dict[str, int] = {}
        for chunks, names in self.holders(hashes):
            found |= dict.fromkeys(names, chunks)
        return found

    def holders(self, hashes: Sequence[int]) -> Iterator[tuple[int, Sequence[str]]]:
        """Return (leading chunks, instances that hold this many), ascending; instances that hold none are omitted."""
        return ((chunks, self._named(mask)) for chunks, mask in self._levels(hashes))

    def tokens(
        self, hashes: Sequence[int], tokens: int, chunks: int = 1, *, block_size: int = 1, most: int = maxsize
    ) -> Mapping[str, int]:
        """Return the leading tokens held by each instance, at most `most` and in whole blocks. `tokens` converts a
        number of chunks."""
        if len(self._names) > FEW:
            return self._by_level(hashes, tokens, chunks, block_size, most)
        found: dict[str, int] = {}
        position, mask, named = 0, -1, self._named_before
        for run, upto in (*self._runs.along(hashes), _NOBODY):  # inlined `_levels`
            following = run.holders & mask
            if position and following != mask:
                count = position * tokens // chunks
                count = (count if count < most else most) // block_size * block_size
                gone = mask ^ following
                for name in named.get(gone) or self._named(gone):
                    found[name] = count
            mask = following
            if not mask:
                break
            position = upto
        return found

    def _by_level(self, hashes: Sequence[int], tokens: int, chunks: int, block_size: int, most: int) -> HeldByLevel:
        counts = ((min(leading * tokens // chunks, most), mask) for leading, mask in self._levels(hashes))
        whole = ((count // block_size * block_size, mask) for count, mask in counts)
        return HeldByLevel(whole, self._names, self._bits)

    def _levels(self, hashes: Sequence[int]) -> Iterator[tuple[int, int]]:
        position, mask = 0, -1
        for run, upto in self._runs.along(hashes):
            following = run.holders & mask
            if position and following != mask:
                yield position, mask ^ following
            mask = following
            if not mask:
                return
            position = upto
        if position:
            yield position, mask

    def insert(self, instance: str, epoch: int, hashes: Sequence[int]) -> int:
        """Insert a prompt, which the instance computes and therefore holds. Return the number of chunks that it held
        before. A newer epoch means that the engine restarted and holds nothing else; an older one is ignored.
        """
        eviction = self._evictions.get(instance)
        if eviction is None or eviction.epoch != epoch:
            eviction = self._eviction(instance, epoch)
        if eviction is None or not hashes:
            return 0
        capacity = min(eviction.limit, self.max_chunks // len(self._evictions) or 1)  # inlined `_capacity`
        kept = hashes[:capacity] if len(hashes) > capacity else hashes
        path = self._runs.along(kept)
        held = _held(path, eviction.bit)
        # If the same prompt was sent twice at once, the second may hit nothing, so the smaller promise is checked.
        promised = eviction.promised.get(hashes[-1])
        if promised is None or held < promised:
            eviction.promised[hashes[-1]] = held
        if len(eviction.promised) > capacity:  # drops promises of requests that were never answered
            del eviction.promised[next(iter(eviction.promised))]
        eviction.use(kept, held, self._runs.hold(eviction.bit, kept, path))
        if eviction.size > capacity:
            self._evict(eviction, capacity - capacity // SPARE_SHARE)
        if len(eviction.stretches) * len(self._evictions) > self.max_stretches:
            self._evict_stretches(eviction)
        return held

    def correct(self, instance: str, hashes: Sequence[int], cached_chunks: int) -> int:
        """Learn from the cached part of a prompt, which the engine reports with its answer. Return the chunks evicted.
        The instance holds the prompt itself now, since the engine has just computed it. Fewer cached chunks than
        predicted mean that the engine evicted more than assumed, so the same number of the least recently used chunks
        are dropped. No more are dropped, because underestimating an engine is the costlier error: sessions leave
        although the engine holds their KV.
        """
        eviction = self._evictions.get(instance)
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
        """Set the capacity of the instance's KV, summed over all tiers; kept across restarts."""
        if self._limits.get(instance) == chunks:
            return
        self._limits[instance] = chunks
        eviction = self._evictions.get(instance)
        if eviction is not None:
            eviction.limit = chunks
            self._evict(eviction, self._capacity(eviction))

    def purge(self, instance: str) -> None:
        """Empty the instance's part after a restart, a cache reset, or its removal."""
        eviction = self._evictions.pop(instance, None)
        if eviction is not None:
            self._evict(eviction, 0)
            self._free.append(eviction.slot)

    def chunks(self, instance: str) -> int:
        """Count the chunks that the instance is believed to hold."""
        eviction = self._evictions.get(instance)
        return eviction.size if eviction is not None else 0

    @property
    def stretches(self) -> int:
        """Count the stretches of all instances, at most `max_stretches`."""
        return sum(len(eviction.stretches) for eviction in self._evictions.values())

    @property
    def copies(self) -> int:
        """Count the chunks held, once per instance, at most `max_chunks`."""
        return sum(eviction.size for eviction in self._evictions.values())

    def __len__(self) -> int:
        """Count the distinct chunks held."""
        return self._runs.chunks

    def _eviction(self, instance: str, epoch: int) -> _EvictionOrder | None:
        eviction = self._evictions.get(instance)
        if eviction is not None and epoch < eviction.epoch:
            return None  # a late message from an earlier epoch
        if eviction is not None and epoch > eviction.epoch:
            self.purge(instance)
            eviction = None
        return eviction if eviction is not None else self._new_eviction(instance, epoch)

    def _new_eviction(self, instance: str, epoch: int) -> _EvictionOrder:
        # Earlier look-ups keep their names and bits, because the lists are only extended or replaced.
        slot = self._free.pop() if self._free else len(self._names)
        if slot < len(self._names) or instance in self._bits:
            self._names = [*self._names[:slot], instance, *self._names[slot + 1 :]]
            self._bits = {name: one.bit for name, one in self._evictions.items()} | {instance: 1 << slot}
        else:
            self._names.append(instance)
            self._bits[instance] = 1 << slot
        self._named_before.clear()
        eviction = _EvictionOrder(slot, epoch, self._limits.get(instance, self._instance_chunks))
        self._evictions[instance] = eviction
        return eviction

    def _capacity(self, eviction: _EvictionOrder) -> int:
        return min(eviction.limit, self.max_chunks // len(self._evictions) or 1)

    def _named(self, mask: int) -> list[str]:
        """Return the instances of a mask. The result is cached, because a thousand instances may share a system
        prompt."""
        names = self._named_before.get(mask)
        if names is None:
            if len(self._named_before) >= MASKS_KEPT:
                self._named_before.clear()
            names = self._named_before[mask] = list(named(mask, self._names))
        return names

    def _evict(self, eviction: _EvictionOrder, size: int) -> None:
        """Evict down to `size` chunks, the least recently used first."""
        while eviction.size > size:
            stretch = next(iter(eviction.stretches))
            low = max(stretch.start, stretch.end - (eviction.size - size))
            self._forget(eviction, stretch, low)

    def _evict_stretches(self, eviction: _EvictionOrder) -> None:
        capacity = self.max_stretches // len(self._evictions) or 1
        if len(eviction.stretches) > capacity:
            surplus = len(eviction.stretches) - capacity + capacity // SPARE_SHARE
            for stretch in list(islice(eviction.stretches, surplus)):
                self._forget(eviction, stretch, stretch.start)

    def _forget(self, eviction: _EvictionOrder, stretch: _Stretch, low: int) -> None:
        """Shorten the stretch so that it ends at `low`."""
        run = self._runs.forget(eviction.bit, stretch.run, low, stretch.end)
        eviction.size -= stretch.end - low
        if low > stretch.start:
            stretch.end, stretch.run = low, run
        else:
            eviction.unlist(stretch)
            del eviction.stretches[stretch]


def _held(path: Path, bit: int) -> int:
    """Count the leading chunks that the instance holds."""
    held = 0
    for run, upto in path:
        if not run.holders & bit:
            break
        held = upto
    return held
