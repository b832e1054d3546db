"""Exact prefix index: the blocks of each instance by tier, from the engines' KV events. A block is identified by the
hash of its tokens chained to the hash of the block before it, the same for all instances. The engine's own name of the
block is kept per instance, because later events refer to it. Engines evict a chain from its end, so an instance that
holds a block holds all earlier ones, and the set of holders only shrinks along a prompt. The positions where it shrinks
are located by doubling steps and bisection: a prompt of a thousand blocks takes some tens of look-ups. An engine that
evicts from the middle would be credited with the blocks after the gap.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from math import inf, nan

from router.policy.held import named
from router.prefix.blocks import linked
from router.prefix.exact.groups import (
    ALL,
    EVERYONE,
    FIRST,
    NONE,
    GroupNeeds,
    MaskAt,
    Parts,
    Rules,
    limited,
    masks_of,
    rules_of,
)
from router.prefix.exact.holders import FURTHER, HolderSets, Masks, placed
from router.prefix.exact.part import FIRST_ONLY, InstanceBlocks
from router.prefix.exact.store import STORE, Readers
from router.prefix.exact.stretches import Stretch, Tokens, summed
from router.prefix.exact.table import IntTable
from router.prefix.exact.untold import BLOCK_BYTES
from router.prefix.forecast.cache_forecast import Heads, InFlight

DEVICE, HOST, DISK = range(3)
TIERS = ("device", "host", "disk")

MAX_BLOCKS = 16_000_000  # blocks held, counted once per instance; at about 70 bytes each
HOLDER_PARTS = 1024
NO_COPY = ((0, 0), nan)  # in the form of InstanceBlocks.copied; NaN compares as later than any time
_SET_BYTES = 300  # rough size of a set of holders
_COPY_BYTES = 120

NOTHING = (0, 0, 0)
NO_PARTS: Parts = {}

Mapped = Sequence[Masks] | Readers  # holders by the number of their set


class IndexFull(Exception):
    """The index has reached its limit; the message has the number of blocks."""


class ExactIndex:
    """The exact index of one pool. `seed` begins each hash chain; it is secret, so that nobody can craft colliding
    prompts."""

    def __init__(self, seed: int, max_blocks: int = MAX_BLOCKS) -> None:
        self.seed = seed
        self._max_blocks = max_blocks
        self._holders = IntTable(HOLDER_PARTS, "I")  # block → number of its set of holders
        self._sets = HolderSets()
        self._readers = Readers(self._sets)
        self._models: Set[str] = frozenset()
        self._parts: dict[str, InstanceBlocks] = {}
        self._capacities: dict[str, int] = {}
        self._names: list[str] = []  # by slot; a free slot keeps its last name
        self._free: list[int] = []
        self.renamed = 0  # how often a slot has received a name
        self._live = 0  # bits of the slots in use
        # By instance and by bits, as of `renamed`
        self._rules: tuple[Mapping[str, int], int, Rules] = ({}, 0, EVERYONE)
        self._grouped: dict[GroupNeeds, int] = {}  # slots of engines with further groups of layers, as bits
        self._leaving: list[tuple[InstanceBlocks, Iterator[int]]] = []
        self._heads = Heads()
        self._held = 0  # blocks, counted once per instance
        self._lower = 0  # blocks below the device

    # From KV events

    def need(self, instance: str, groups: GroupNeeds) -> None:
        """Require blocks of further groups of layers for a hit on this instance; they are stored at places from FURTHER
        on."""
        part = self._part(instance)
        if part.groups != groups:
            self._ungroup(part)
            part.groups = groups
            part.on_tier += [0] * (FURTHER + len(groups.needs) - len(part.on_tier))
            self._grouped[groups] = self._grouped.get(groups, 0) | part.bit

    def store(
        self,
        instance: str,
        names: Sequence[int],
        parent: int | None,
        tokens: bytes,
        block_size: int,
        tier: int = DEVICE,
        extras: Sequence[bytes] = (),
    ) -> None:
        """Add blocks of a chain that the instance now holds, under the engine's `names`. Raise IndexFull. Blocks
        without tokens are already held on another tier or by another group. `extras` holds further input of each
        block's hash (adapter, salt, image), empty for tokens alone.
        """
        part = self._part(instance)
        self._place(part, part.names.get, names, parent, tokens, block_size, tier, extras)

    def share(
        self,
        instance: str,
        names: Sequence[int],
        parent: int | None,
        tokens: bytes,
        block_size: int,
        tier: int,
        extras: Sequence[bytes] = (),
    ) -> None:
        """Like `store`, add blocks, but to the store that the instance shares with other instances of its pool."""
        self.read_store(instance)
        part, store = self._part(instance), self._part(STORE)
        self._readers.store = store.bit
        self._live &= ~store.bit

        def block_of(name: int) -> int:
            return part.names.get(name) or store.names.get(name)

        self._place(store, block_of, names, parent, tokens, block_size, tier, extras)

    def read_store(self, instance: str) -> None:
        """Note that the instance can fetch from the pool's store."""
        self._readers.bits |= self._part(instance).bit

    def of_models(self, models: Set[str]) -> None:
        """Forget the store's blocks when the models of its instances change, because a model cannot read another
        model's blocks.
        """
        if models != self._models:
            self._models = models
            self.clear(STORE)

    def _place(
        self,
        part: InstanceBlocks,
        block_of: Callable[[int], int],
        names: Sequence[int],
        parent: int | None,
        tokens: bytes,
        block_size: int,
        tier: int,
        extras: Sequence[bytes],
    ) -> None:
        """Place blocks on a tier or in a further group. `block_of` returns the index's block for the engine's name, 0
        if unknown."""
        link = self.seed if parent is None else block_of(parent)
        if not tokens or not (link or tier == DEVICE):
            links = [(name, block_of(name)) for name in names]
            part.unknown += sum(not block for _, block in links)
            self._add(part, [name for name, block in links if block], [block for _, block in links if block], 0, tier)
            return
        if not link:
            part.unknown += len(names)
            return
        # A store reports its blocks' tokens without salt and adapter, although its block names depend on both. A block
        # of a further group has the name of the first group's block that ends at the same token.
        known = map(block_of, names) if tier != DEVICE else ()
        blocks = linked(tokens, block_size, link, extras, known)[: len(names)]
        self._add(part, names[: len(blocks)], blocks, link, tier)

    def untold(self, instance: str, names: Sequence[int], tier: int, now: float) -> None:
        """Note stored blocks whose removal the engine will not report. `now` is in s, monotonic."""
        part = self._part(instance)
        for name in names if part.copies else ():  # stored again after the store had evicted them
            part.copies.pop((name, tier), None)
        held = [(name, block) for name in names if (block := part.names.get(name))]
        part.untold.add((name for name, _ in held), (block for _, block in held), tier, now)

    def expire(self, now: float) -> None:
        """Drop unreported blocks after their time."""
        for instance, part in self._parts.items():
            for name, tier in list(part.untold.expired(now)):
                self.drop(instance, (name,), tier)

    def refute(self, instance: str, hashes: Sequence[int], held: int, asked_at: float = inf) -> None:
        """Correct the index: the engine had only `held` leading blocks of this prompt. Therefore no store has the next
        blocks for it; if the engine reports a block's removal only with the last copy, the next block has no copy left.
        Engines compute the last block of a whole prompt again. Blocks stored after `asked_at` (s, monotonic) may be the
        prompt's own.
        """
        part = self._parts.get(instance)
        if part is None:
            return
        ghost, came_at = part.copied.get(hashes[held], NO_COPY) if held + 1 < len(hashes) else NO_COPY
        if came_at <= asked_at:
            del part.copied[hashes[held]]
            if part.names.get(ghost[0]) == hashes[held]:
                self.drop(instance, {ghost[0]: 0}, ghost[1])
        for name in (instance, STORE) if part.bit & self._readers.bits else (instance,):
            untold = self._parts[name].untold if name in self._parts else ()
            for block in hashes[held:] if untold else ():
                residence = self._parts[name].untold.take(block, asked_at)
                if residence is not None:
                    self.drop(name, residence[:1], residence[1])

    def drop(self, instance: str, names: Sequence[int] | Mapping[int, int], tier: int = DEVICE) -> None:
        """Remove a copy of each of these blocks from the tier; an entry may state how many copies remain."""
        part = self._part(instance)
        if isinstance(names, Mapping):
            more = part.take_copies(names, tier)
            part.forecast.held += more if tier == DEVICE else 0
            names = [name for name, count in names.items() if not count]
        if tier == DEVICE and not part.copies and not any(part.on_tier[HOST:]):
            self._drop_all(part, names)
            return
        changes: dict[int, int] = {}
        for name in names:
            block = part.names.get(name)
            if block and part.drop_copy(name, tier):
                part.forecast.held -= tier == DEVICE
            elif block:
                self._drop(part, name, block, tier, changes)
        self._sets.release(changes)

    def clear(self, instance: str, *, still_reads: bool = False) -> None:
        """Clear the instance; `sweep` removes its entries in steps. With `still_reads`, an instance that can fetch from
        the pool's store still can."""
        part = self._parts.pop(instance, None)
        if instance == STORE:
            self._readers.store = 0
        if part is not None:
            self._live &= ~part.bit
            self._ungroup(part)
            if part.bit & self._readers.bits:
                if still_reads:
                    self.read_store(instance)
                self._readers.bits &= ~part.bit
                if not self._readers.bits:
                    self.clear(STORE)
            self._held -= sum(part.on_tier)
            self._lower -= part.on_tier[HOST] + part.on_tier[DISK]
            part.forecast.close()
            self._leaving.append((part, part.names.values()))

    def sweep(self, blocks: int) -> bool:
        """Remove up to `blocks` blocks of cleared instances. Return True while there are more."""
        while self._leaving and blocks > 0:
            part, rest = self._leaving[-1]
            changes: dict[int, int] = {}
            for block in rest:
                number = self._holders.get(block)
                if number not in changes:
                    changes[number] = self._sets.without_instance(number, part.bit)
                self._put(block, number, changes[number])
                blocks -= 1
                if blocks <= 0:
                    break
            else:
                self._leaving.pop()
                self._free.append(part.slot)
            self._sets.release(changes)
        return bool(self._leaving)

    # Look-up

    @property
    def names(self) -> Sequence[str]:
        """Return the instances by slot; a free slot keeps its last name."""
        return self._names

    def slot(self, instance: str) -> int:
        """Return the slot of an instance that a look-up named."""
        return self._parts[instance].slot

    def match(
        self, hashes: Sequence[int], block_size: int, parts: Parts = NO_PARTS, rules: Rules = EVERYONE
    ) -> dict[str, Tokens]:
        """Return the leading tokens held by each instance, by fastest tier; instances without any are omitted."""
        return summed(self.stretches(hashes, parts, rules), block_size, self._names)

    def stretches(self, hashes: Sequence[int], parts: Parts = NO_PARTS, rules: Rules = EVERYONE) -> Sequence[Stretch]:
        """Return the stretches of a prompt with the same holders, from the first block; their bits index `names`.
        `parts` has the hashes of its blocks' parts; `rules` those by which the instances speculate."""
        runs = self._runs(hashes)
        if not self._grouped:
            return runs
        return limited(runs, len(hashes), self._grouped, self._group_mask(hashes, parts), rules)

    def by_rule(
        self, instance: str, hashes: Sequence[int], block_size: int, parts: Parts = NO_PARTS, expected: int = 1
    ) -> tuple[int, ...]:
        """Return the leading tokens of an instance by each rule of speculation; empty without further groups. This
        takes few steps if the instance holds about as many blocks as `expected`."""
        part = self._parts.get(instance)
        if part is None or not part.groups.needs:
            return ()
        level = len(hashes)
        if part.groups.rooted:
            start = min(max(expected, 1), level) - 1
            runs = self._runs(hashes, part.bit, start) or self._runs(hashes, part.bit)
            level = runs[-1][0] if runs else 0
        mask_at = cache(self._group_mask(hashes, parts))  # the rules examine nearly the same blocks
        ends = []
        for rule in (NONE, FIRST, ALL):
            by_end = part.groups.allowed(level, part.bit, mask_at, rule)
            ends.append(max(by_end, default=0) * block_size)
        return tuple(ends)

    def rules(self, by_instance: Mapping[str, int]) -> Rules:
        """Return the rules of the instances, NONE for those that are not named."""
        known, renamed, _ = self._rules
        if known is not by_instance or renamed != self.renamed:
            bits = {name: part.bit for name, part in self._parts.items()}
            self._rules = by_instance, self.renamed, rules_of(masks_of(by_instance, bits))
        return self._rules[2]

    def _runs(self, hashes: Sequence[int], among: int = -1, start: int = 0) -> list[Stretch]:
        """Return the stretches by the first groups of layers alone, from the block `start`. `among`: the bits of the
        instances."""
        get, reads = self._holders.get, self._readers
        anywhere: Callable[[int], int] = reads.anywhere if reads.bits else self._sets.anywhere.__getitem__
        masks: Mapped = reads if reads.bits else self._sets.masks
        runs: list[Stretch] = []
        number = get(hashes[start]) if hashes else 0
        alive = anywhere(number) & self._live & among
        while alive:
            end = self._end_of_run(hashes, start, number, alive, masks)
            runs.append((end, placed(masks[number], alive)))
            start, number = end, get(hashes[end]) if end < len(hashes) else 0
            alive &= anywhere(number)
        return runs

    def _group_mask(self, hashes: Sequence[int], parts: Parts) -> MaskAt:
        get, groups, blocks = self._holders.get, self._sets.groups, len(hashes)

        def mask_at(group: int, position: int, pieces: int) -> int:
            piece = position % pieces
            within = parts.get(pieces) if piece < pieces - 1 else None
            if within is None and piece < pieces - 1:
                return -1  # not hashed: the neighbouring blocks decide
            position //= pieces
            if position >= blocks:
                return 0
            masks = groups[get(within[position * (pieces - 1) + piece] if within is not None else hashes[position])]
            return masks[group] if group < len(masks) else 0

        return mask_at

    def changing(self, stretches: Sequence[Stretch]) -> list[Stretch]:
        """Return the stretches, limited to instances for which `foreseen` may differ."""
        busy = self._heads.busy
        return [(end, (device & busy, host & busy, disk & busy)) for end, (device, host, disk) in stretches]

    def look_up(
        self, hashes: Sequence[int], block_size: int, now: float, parts: Parts = NO_PARTS, rules: Rules = EVERYONE
    ) -> dict[str, Tokens]:
        """Return the blocks that each instance will hold when it admits a request sent now. `now`: s, monotonic."""
        matched = self.match(hashes, block_size, parts, rules)
        return matched | self.foreseen(matched, hashes, block_size, now)

    # Requests in flight

    def limit(self, instance: str, blocks: int) -> None:
        """Set the blocks of the instance's KV cache; kept when it is cleared."""
        if self._capacities.get(instance) != blocks:
            self._capacities[instance] = blocks
            if instance in self._parts:
                self._parts[instance].forecast.resize(blocks)

    def foreseen(
        self, held: Mapping[str, Tokens], hashes: Sequence[int], block_size: int, now: float
    ) -> dict[str, Tokens]:
        """Return the blocks that each instance will hold when it admits a request sent now, if that differs from
        `match`. `now`: s, monotonic."""
        changed: dict[str, Tokens] = {}
        parts, names = self._parts, self._names
        for instance, (device, host, disk) in self._of_busy(held):
            if host or disk or not parts[instance].groups.rooted:  # evicted blocks remain on the next tier
                continue
            blocks = device // block_size
            left = parts[instance].forecast.foreseen(hashes, blocks, now)
            if left < blocks or (left > blocks and parts[instance].groups is FIRST_ONLY):
                changed[instance] = (left * block_size, 0, 0)
        # An instance that holds none of the prompt will hold some only if it is computing a prompt with the same
        # beginning.
        for slot in tuple(self._heads.get(hashes[0], ())) if hashes else ():
            instance = names[slot]
            if instance in held or parts[instance].groups is not FIRST_ONLY:  # the kept states are unknown
                continue
            if left := parts[instance].forecast.foreseen(hashes, 0, now):
                changed[instance] = (left * block_size, 0, 0)
        return changed

    def _of_busy(self, held: Mapping[str, Tokens]) -> Iterable[tuple[str, Tokens]]:
        """Leave out instances that will not change: of many instances, few may have requests in flight."""
        busy = self._heads.busy
        if busy.bit_count() >= len(held):
            return held.items()
        return [(name, held[name]) for name in named(busy, self._names) if name in held]

    def sent(self, instance: str, hashes: Sequence[int], foreseen: int) -> InFlight:
        """Note a prompt sent to the instance, where `foreseen` leading blocks are expected to be cached at
        admission."""
        return self._part(instance).forecast.sent(hashes, foreseen)

    def blocks(self, instance: str) -> Tokens:
        """Count the blocks of the first group of layers that an instance holds, by tier."""
        part = self._parts.get(instance)
        if part is None:
            return NOTHING
        return part.on_tier[DEVICE if part.groups.rooted else FURTHER], part.on_tier[HOST], part.on_tier[DISK]

    def held_by(self, instance: str) -> int:
        """Count the blocks of all tiers and groups of an instance."""
        part = self._parts.get(instance)
        return sum(part.on_tier) if part is not None else 0

    def unknown(self, instance: str) -> int:
        """Count blocks whose parent was unknown, in events since the instance was last cleared."""
        part = self._parts.get(instance)
        return part.unknown if part is not None else 0

    def __len__(self) -> int:
        """Count the distinct blocks held."""
        return len(self._holders)

    @property
    def held(self) -> int:
        """Count the blocks held, once per instance and tier."""
        return self._held

    @property
    def has_lower(self) -> bool:
        """Return whether any instance holds a block below its device."""
        return self._lower > 0

    @property
    def bytes(self) -> int:
        """Estimate the memory to within a few percent."""
        parts = [*self._parts.values(), *(part for part, _ in self._leaving)]
        own = sum(part.names.bytes + part.forecast.bytes for part in parts)
        own += sum((len(part.copies) + len(part.copied)) * _COPY_BYTES for part in parts)
        own += sum(len(part.untold) * BLOCK_BYTES for part in parts)
        return own + self._holders.bytes + len(self._sets) * _SET_BYTES

    def _part(self, instance: str) -> InstanceBlocks:
        part = self._parts.get(instance)
        if part is None:
            if self._free:
                slot = self._free.pop()
                self._names[slot] = instance
            else:
                slot = len(self._names)
                self._names.append(instance)
            self.renamed += 1
            part = self._parts[instance] = InstanceBlocks(slot, self._capacities.get(instance, 0), self._heads)
            self._live |= part.bit
        return part

    def _ungroup(self, part: InstanceBlocks) -> None:
        others = self._grouped.pop(part.groups, 0) & ~part.bit
        if others:
            self._grouped[part.groups] = others

    def _add(self, part: InstanceBlocks, names: Sequence[int], blocks: list[int], parent: int, tier: int) -> None:
        """Add blocks. `names` are the engine's; `blocks` are the index's own, following `parent`, 0 if unknown."""
        if self._held + len(blocks) > self._max_blocks:
            raise IndexFull(f"the index is full: it holds {self._held:,} blocks and may hold {self._max_blocks:,}")
        known = part.names.put_all(names, blocks)
        for before, block in zip(known, blocks, strict=True) if any(known) else ():
            if before and before != block:  # the engine reused the name
                self._leave(part, before)
        numbers, changes = self._holders.change(blocks, lambda number: self._sets.with_holder(number, part.bit, tier))
        new = self._recount(numbers, changes)
        again = []
        if new < len(blocks):
            same = zip(names, blocks, known, numbers, strict=True)
            again = [(name, block) for name, block, before, number in same if before and changes[number] == number]
            if again:
                part.add_copies(again, tier, time.monotonic())
        part.on_tier[tier] += new
        self._held += new
        if DEVICE < tier < FURTHER:
            self._lower += new
        if tier == DEVICE:
            part.forecast.stored(blocks, parent, new, len(again))

    def _drop_all(self, part: InstanceBlocks, names: Sequence[int]) -> None:
        """Drop all entries; this is the fast path for an instance with one tier and one copy of each block."""
        blocks = list(filter(None, part.names.pop_all(names)))
        numbers, changes = self._holders.change(
            blocks, lambda number: self._sets.without_holder(number, part.bit, DEVICE)
        )
        gone = self._recount(numbers, changes)
        part.on_tier[DEVICE] -= gone
        self._held -= gone
        part.forecast.dropped(blocks)

    def _recount(self, numbers: list[int], changes: Mapping[int, int]) -> int:
        """Move blocks to their changed sets of holders. Return how many changed."""
        counts, changed = self._sets.counts, 0
        for number, blocks in Counter(numbers).items():
            after = changes[number]
            if after != number:
                counts[number] -= blocks
                counts[after] += blocks
                changed += blocks
        self._sets.release(changes)
        return changed

    def _drop(self, part: InstanceBlocks, name: int, block: int, tier: int, changes: dict[int, int]) -> None:
        number = self._holders.get(block)
        after = changes.get(number)
        if after is None:
            after = changes[number] = self._sets.without_holder(number, part.bit, tier)
        if after != number:
            self._put(block, number, after)
            part.on_tier[tier] -= 1
            self._held -= 1
            self._lower -= DEVICE < tier < FURTHER
            if tier == DEVICE:
                part.forecast.dropped([block])
            if not self._sets.places(after, part.bit):
                part.names.pop(name)

    def _leave(self, part: InstanceBlocks, block: int) -> None:
        number = self._holders.get(block)
        for tier in self._sets.places(number, part.bit):
            part.on_tier[tier] -= 1
            self._held -= 1
            self._lower -= DEVICE < tier < FURTHER
            if tier == DEVICE:
                part.forecast.dropped([block])
        self._put(block, number, self._sets.without_instance(number, part.bit))
        self._sets.release((number,))

    def _put(self, block: int, number: int, after: int) -> None:
        """Change the block's set of holders from `number` to `after`."""
        counts = self._sets.counts
        counts[number] -= 1
        if after:
            self._holders.put(block, after)
            counts[after] += 1
        else:
            self._holders.pop(block)

    def _end_of_run(self, hashes: Sequence[int], start: int, number: int, alive: int, masks: Mapped) -> int:
        """Return the first position after `start` where the holders in `alive` differ from those at `start`."""
        get = self._holders.get
        here = placed(masks[number], alive)

        def differs(position: int) -> bool:
            other = get(hashes[position])
            return other != number and placed(masks[other], alive) != here

        low, step, end = start, 1, len(hashes)
        while low + step < end and not differs(low + step):
            low += step
            step *= 2
        return bisect_left(range(min(low + step, end)), True, low + 1, key=differs)
