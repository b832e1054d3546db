"""Needs of a hit beyond the first group of layers: vLLM's rule for models with several groups. Pure. A prefix can be
reused up to a block from which every group can continue. Layers with a sliding window need the blocks of the window
before it, recurrent layers their state at its end, further layers with full attention all blocks; engines evict those
from the end, so the last block stands for all. Each need is a number of consecutive blocks up to the end of the hit,
fewer near the beginning. Chunked attention needs the blocks of its chunk, so none at the start of a chunk. The longest
prefix that all groups allow is the hit.

Blocks of a further group may be smaller than the first group's, which count as several parts then.

Engines that speculate from hidden states (EAGLE, MTP) compute the last matching block of the drafter's groups again,
before those groups limit each other: the first group's hit is a block shorter then, or a window must also be held a
block beyond the hit. No event identifies the drafter's groups, so a hit has a length for each rule. Instances are bits
of a mask, so one pass serves all instances that hold the same blocks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

from router.prefix.exact.holders import Masks
from router.prefix.exact.stretches import Stretch

NONE, FIRST, ALL = range(3)  # groups that compute their last block again: none, the first, all but states

# By number of parts per first-group block: hashes of all parts except the last of each block, in order
Parts = Mapping[int, Sequence[int]]
PartsBySize = Mapping[int, Parts]  # by tokens per first-group block
# (further group, position in parts, parts per first-group block) → instances whose group holds that part
MaskAt = Callable[[int, int, int], int]
Rules = Sequence[tuple[int, int]]  # (rule of speculation, instances), each instance once
EVERYONE: Rules = ((NONE, -1),)


@dataclass(frozen=True, slots=True)
class GroupNeed:
    """The needs of a further group, in blocks of the first group."""

    blocks: int  # consecutive own blocks that end where the hit ends
    step: int = 1  # first-group blocks per own block
    chunk: int = 0  # first-group blocks per chunk of attention; 0 if unknown or none
    drafts: bool = False  # whether layers of its kind may be a drafter's
    parts: int = 1  # own blocks per first-group block; with several, `blocks` and `step` count these


@dataclass(frozen=True)
class GroupNeeds:
    """The needs of an engine, by further group."""

    needs: tuple[GroupNeed, ...] = ()
    rooted: bool = True  # whether the first group has full attention

    @cached_property
    def align(self) -> int:
        """Return the unit of hits: at its multiples, all groups end."""
        return math.lcm(1, *(need.step for need in self.needs))

    def allowed(self, end: int, instances: int, mask_at: MaskAt, rule: int = NONE) -> dict[int, int]:
        """Return the instances by the number of blocks that all their groups would allow for a hit that ends at `end`;
        instances that allow none are under 0."""
        found: dict[int, int] = {}
        end -= rule != NONE
        waiting = {end - end % self.align: instances}
        while waiting:
            end = max(waiting)
            bits = waiting.pop(end)
            for before, some in self._missing(end, bits, mask_at, rule) if end > 0 else ():
                bits &= ~some
                shorter = before - before % self.align
                waiting[shorter] = waiting.get(shorter, 0) | some
            if end > 0 and bits:
                end -= self._lost(end) if rule == ALL else 0
                found[end] = found.get(end, 0) | bits
        return found

    def _lost(self, end: int) -> int:
        """Return the number of blocks that a drafter's windows of smaller blocks lose at the beginning of a prompt,
        where vLLM aligns the held blocks, drops one, and aligns the rest."""
        left = end
        for need in self.needs:
            if need.parts > 1 and need.drafts and left * need.parts < need.blocks:
                left = max(left - self.align, 0)
        return end - left

    def _missing(self, end: int, bits: int, mask_at: MaskAt, rule: int) -> list[tuple[int, int]]:
        """Return pairs of (earlier end of the hit, instances that lack the block there)."""
        shorter = []
        for group, need in enumerate(self.needs):
            parts, step = need.parts, need.step
            # The start of the chunk in which the hit ends: nothing before it is needed.
            begins, close = (end - end % need.chunk) * parts if need.chunk else 0, end * parts
            ahead = step if rule == ALL and need.drafts else 0
            for last in range(close + ahead - 1, max(close - need.blocks * step, begins) - 1, -step):
                some = bits & ~mask_at(group, last, parts)
                if some:
                    before = last + 1 - step
                    while before > begins and not some & mask_at(group, before - 1, parts):
                        before -= step
                    shorter.append((max(before - ahead, 0) // parts, some))
                    bits &= ~some
                    if not bits:
                        return shorter
        return shorter


def rules_of(speculating: Mapping[int, int]) -> Rules:
    """Return the rules of all instances. `speculating`: those that speculate, by rule."""
    return ((NONE, ~reduce(or_, speculating.values(), 0)), *speculating.items())


def masks_of(by_instance: Mapping[str, int], bits: Mapping[str, int]) -> dict[int, int]:
    """Return the instances by rule, as masks; `bits` has the bit of each."""
    masks: dict[int, int] = {}
    for name, rule in by_instance.items():
        masks[rule] = masks.get(rule, 0) | bits.get(name, 0)
    return masks


def limited(
    runs: Sequence[Stretch], blocks: int, grouped: Mapping[GroupNeeds, int], mask_at: MaskAt, rules: Rules = EVERYONE
) -> Sequence[Stretch]:
    """Return the stretches of a prompt of `blocks` blocks, each instance only as far as all its groups allow. `grouped`
    maps the instances with further groups to their needs."""
    everyone = rootless = 0
    for needs, members in grouped.items():
        everyone |= members
        rootless |= 0 if needs.rooted else members
    return _cut(runs, _ends(rules, runs, blocks, grouped, mask_at), everyone, rootless)


def _ends(
    rules: Rules, runs: Sequence[Stretch], blocks: int, grouped: Mapping[GroupNeeds, int], mask_at: MaskAt
) -> dict[int, int]:
    """Return the instances of `grouped` by the end of their hits; those without a hit are under 0."""
    ends: dict[int, int] = {}
    for needs, members in grouped.items():
        for level, bits in _levels(runs, members) if needs.rooted else [(blocks, members)]:
            for rule, mask in rules:
                for end, some in needs.allowed(level, bits & mask, mask_at, rule).items() if bits & mask else ():
                    ends[end] = ends.get(end, 0) | some
    return ends


def _levels(runs: Sequence[Stretch], members: int) -> list[tuple[int, int]]:
    """Return the members by their number of blocks."""
    levels, following = [], 0
    for end, (device, host, disk) in reversed(runs):
        here = (device | host | disk) & members
        if gone := here & ~following:
            levels.append((end, gone))
        following = here
    return levels


def _cut(runs: Sequence[Stretch], ends: Mapping[int, int], everyone: int, rootless: int) -> Sequence[Stretch]:
    """Cut the stretches. `ends` has the ends of the instances in `everyone`; instances in `rootless` are in no stretch
    yet."""
    cut: list[Stretch] = []
    number = 0
    for end in sorted({*ends, *(end for end, _ in runs)}):
        while number < len(runs) and runs[number][0] < end:
            number += 1
        device, host, disk = runs[number][1] if number < len(runs) else (0, 0, 0)
        staying = 0
        for last, bits in ends.items():
            staying |= bits if last >= end else 0
        kept = ~everyone | staying
        masks: Masks = (device & kept | staying & rootless, host & kept, disk & kept)
        if not any(masks):
            break
        if cut and cut[-1][1] == masks:
            cut.pop()
        cut.append((end, masks))
    return cut
