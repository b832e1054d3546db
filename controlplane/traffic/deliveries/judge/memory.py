"""The judge's memory between looks, stored in Delivery.memory. Pure."""

import msgspec
from msgspec import Struct, field

from controlplane.traffic.deliveries.judge.sums import Life
from router.contract.redis.delivery import CellTally
from router.contract.values.reading import read_value


class EndedCounts(Struct, frozen=True, array_like=True):
    """Ended requests of each arm up to a look, without client errors, and the failures among them: (ended, failed)."""

    at: float  # s by the judge's clock
    candidate: tuple[int, int]
    control: tuple[int, int]


class Block(Struct, frozen=True, array_like=True):
    """One block of a switchback: the requests decided in it, with the answers so far."""

    number: int
    candidate: bool  # True if the candidate had the pool
    classes: dict[str, CellTally]
    generation: int = 0  # generation under which routers count the block

    def total(self, field: str) -> int:
        return sum(getattr(tally, field) for tally in self.classes.values())


class PoolMemory(Struct):
    generation: int = 0
    since: float = 0.0  # time of the first look at the generation, s
    lives: dict[str, Life] = field(default_factory=dict)
    windows: list[EndedCounts] = field(default_factory=list)  # windows of this generation; the breaker needs fewer
    above: dict[str, float] = field(default_factory=dict)  # by pool guard: time when its metric rose above the limit
    # By query: outcome, number of consecutive looks with it
    looks: dict[str, tuple[str, int]] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)  # pairs at each judgement of a switchback; see `extend`
    behind: float | None = None  # time since which a router has been behind, s
    promoted: EndedCounts | None = None  # the routers' last minute at the time of the promotion


class Memory(Struct):
    pools: dict[str, PoolMemory] = field(default_factory=dict)
    without_data: float | None = None  # time since which a needed guard has had no data, s
    errors_before: float = 0.0  # latest share of failed control requests, 0–1, for the breaker during the bake

    def of(self, pool: str, generation: int, now: float) -> PoolMemory:
        """Return the pool's memory, without the incarnations and windows of earlier generations."""
        known = self.pools.setdefault(pool, PoolMemory(since=now, generation=generation))
        if known.generation != generation:
            known.generation, known.since, known.lives, known.windows = generation, now, {}, []
        return known


def at_start(kept: Memory, blocks: int) -> Memory:
    """Return the memory at the start of a step, or after a hold or a pause: only the first `blocks` blocks are kept."""
    pools = {
        name: PoolMemory(blocks=[block for block in pool.blocks if block.number < blocks], judged=pool.judged)
        for name, pool in kept.pools.items()
        if blocks
    }
    return Memory(pools, errors_before=kept.errors_before)


def load(stored: object) -> Memory:
    """Read the stored memory; it is empty before the first look, and if another version of Weir wrote another
    format."""
    try:
        return read_value(stored, Memory, strict=False)
    except msgspec.ValidationError:
        return Memory()
