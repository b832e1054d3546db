"""What a hit needs besides the blocks of the first group of layers: vLLM's rule for models of several groups. Pure.

A prefix can be reused up to a block where every group can go on. Layers with a sliding window need the blocks of the
window before it, recurrent ones their state at its end, further ones with full attention all blocks, of which an engine
evicts the end first, so that the last one stands for all. Each is a number of blocks in a row that end where the hit
ends; near its beginning there are fewer before it. Chunked attention needs the blocks of the chunk, so none where a
chunk begins. The longest prefix that all groups allow is the hit.

Instances are bits of a mask, so one pass serves all that hold the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from router.prefix.exact.holders import Masks
from router.prefix.exact.stretches import Stretch

MaskAt = Callable[[int, int], int]  # a further group and a position: the instances whose group holds that block


@dataclass(frozen=True, slots=True)
class GroupNeed:
    """Of a further group, in blocks of the first one."""

    blocks: int  # its own blocks in a row that end where the hit ends
    step: int = 1  # blocks of the first group in one of its own
    chunk: int = 0  # blocks of the first group in a chunk of attention; 0: not known, or none

    def begins(self, end: int) -> int:
        """Where a chunk begins that ends no earlier than a hit at `end` blocks: no block before it is needed."""
        return end - end % self.chunk if self.chunk else 0


@dataclass(frozen=True)
class GroupNeeds:
    """Of one engine, by further group."""

    needs: tuple[GroupNeed, ...] = ()
    rooted: bool = True  # its first group has full attention

    @cached_property
    def align(self) -> int:
        """A hit is a multiple of it: all groups end there."""
        return math.lcm(1, *(need.step for need in self.needs))

    def allowed(self, end: int, instances: int, mask_at: MaskAt) -> dict[int, int]:
        """The instances by the blocks that all their groups allow, where `end` would be the hit; none has 0."""
        found: dict[int, int] = {}
        waiting = {end - end % self.align: instances}
        while waiting:
            end = max(waiting)
            bits = waiting.pop(end)
            for before, some in self._missing(end, bits, mask_at):
                bits &= ~some
                shorter = before - before % self.align
                waiting[shorter] = waiting.get(shorter, 0) | some
            if end and bits:
                found[end] = found.get(end, 0) | bits
        return found

    def _missing(self, end: int, bits: int, mask_at: MaskAt) -> list[tuple[int, int]]:
        """Where the hit has to end instead: before the block that some instances lack."""
        shorter = []
        for group, need in enumerate(self.needs):
            begins = need.begins(end)
            for last in range(end - 1, max(end - need.blocks * need.step, begins) - 1, -need.step):
                some = bits & ~mask_at(group, last)
                if some:
                    before = last + 1 - need.step
                    while before > begins and not some & mask_at(group, before - 1):
                        before -= need.step
                    shorter.append((before, some))
                    bits &= ~some
                    if not bits:
                        return shorter
        return shorter


def limited(
    runs: Sequence[Stretch], blocks: int, grouped: Mapping[GroupNeeds, int], mask_at: MaskAt
) -> Sequence[Stretch]:
    """The stretches of a prompt of `blocks` blocks, with instances only as far as all their groups go; `grouped`:
    those that have further groups, by what these need."""
    ends: dict[int, int] = {}
    rootless = 0
    for needs, members in grouped.items():
        levels = _levels(runs, members) if needs.rooted else [(blocks, members)]
        rootless |= 0 if needs.rooted else members
        for level, bits in levels:
            for end, some in needs.allowed(level, bits, mask_at).items():
                ends[end] = ends.get(end, 0) | some
    everyone = 0
    for members in grouped.values():
        everyone |= members
    return _cut(runs, ends, everyone, rootless)


def _levels(runs: Sequence[Stretch], members: int) -> list[tuple[int, int]]:
    """The members by the end of what they hold."""
    levels, following = [], 0
    for end, (device, host, disk) in reversed(runs):
        here = (device | host | disk) & members
        if gone := here & ~following:
            levels.append((end, gone))
        following = here
    return levels


def _cut(runs: Sequence[Stretch], ends: Mapping[int, int], everyone: int, rootless: int) -> Sequence[Stretch]:
    """`ends`: of those in `everyone`, by where they end now; `rootless` are in no stretch yet."""
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
