"""What the judge keeps from look to look, in Delivery.memory. Pure."""

import msgspec
from msgspec import Struct, field

from controlplane.deliveries.judge.sums import Life
from router.contract.redis.delivery import CellTally


class EndedCounts(Struct, frozen=True, array_like=True):
    """Requests that had ended by a look, and those of them that had failed: of each arm."""

    at: float  # s, of the judge's clock
    candidate: tuple[int, int]
    control: tuple[int, int]


class Block(Struct, frozen=True, array_like=True):
    """One block of a switchback: what was decided in it, with the answers that have ended so far."""

    number: int
    candidate: bool  # the candidate had the pool
    classes: dict[str, CellTally]
    generation: int = 0  # in which routers counted it

    def total(self, field: str) -> int:
        return sum(getattr(tally, field) for tally in self.classes.values())


class PoolMemory(Struct):
    generation: int = 0
    since: float = 0.0  # s: first look at the generation
    lives: dict[str, Life] = field(default_factory=dict)
    windows: list[EndedCounts] = field(default_factory=list)  # of the generation, a few more than the breaker's
    above: dict[str, float] = field(default_factory=dict)  # by pool guard: since when its metric is above
    looks: dict[str, tuple[str, int]] = field(default_factory=dict)  # by query: its answer, and looks with it in a row
    blocks: list[Block] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)  # numbers of pairs at which a switchback was judged: see `extend`
    behind: float | None = None  # s: since when a router is behind
    promoted: EndedCounts | None = None  # the routers' last minute as it was when the candidate got all requests


class Memory(Struct):
    pools: dict[str, PoolMemory] = field(default_factory=dict)
    without_data: float | None = None  # s: since when a needed guard has no data
    errors_before: float = 0.0  # 0–1 of control's requests as last seen; the breaker needs it while the candidate bakes

    def of(self, pool: str, generation: int, now: float) -> PoolMemory:
        """The memory of the pool in this generation; tallies and windows of earlier ones do not count."""
        known = self.pools.setdefault(pool, PoolMemory(since=now, generation=generation))
        if known.generation != generation:
            known.generation, known.since, known.lives, known.windows = generation, now, {}, []
        return known


def at_start(kept: Memory, blocks: int) -> Memory:
    """At the start of a step, also after a hold or a pause: everything is counted anew but these first blocks."""
    pools = {
        name: PoolMemory(blocks=[block for block in pool.blocks if block.number < blocks], judged=pool.judged)
        for name, pool in kept.pools.items()
        if blocks
    }
    return Memory(pools, errors_before=kept.errors_before)


def load(stored: object) -> Memory:
    """Empty before the first look, or when another version of Weir wrote something else."""
    try:
        return msgspec.convert(stored, Memory, strict=False)
    except msgspec.ValidationError:
        return Memory()
