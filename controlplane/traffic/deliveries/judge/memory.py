"""What the judge keeps between looks, in Delivery.memory. Pure."""

import msgspec
from msgspec import Struct, field

from controlplane.traffic.deliveries.judge.sums import Life
from router.contract.redis.delivery import CellTally


class EndedCounts(Struct, frozen=True, array_like=True):
    """Requests of each arm that had ended by a look, client errors left out, and how many failed: (ended, failed)."""

    at: float  # s, of the judge's clock
    candidate: tuple[int, int]
    control: tuple[int, int]


class Block(Struct, frozen=True, array_like=True):
    """One block of a switchback: the requests decided in it, with the answers so far."""

    number: int
    candidate: bool  # the candidate had the pool
    classes: dict[str, CellTally]
    generation: int = 0  # generation in which routers count it

    def total(self, field: str) -> int:
        return sum(getattr(tally, field) for tally in self.classes.values())


class PoolMemory(Struct):
    generation: int = 0
    since: float = 0.0  # s: first look at the generation
    lives: dict[str, Life] = field(default_factory=dict)
    windows: list[EndedCounts] = field(default_factory=list)  # this generation's; a few more than the breaker needs
    above: dict[str, float] = field(default_factory=dict)  # by pool guard: since when its metric is above the limit
    looks: dict[str, tuple[str, int]] = field(default_factory=dict)  # by query: its outcome, at how many looks in a row
    blocks: list[Block] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)  # pairs at each judgement of a switchback; see `extend`
    behind: float | None = None  # s: since when a router is behind
    promoted: EndedCounts | None = None  # the routers' last minute at the promotion


class Memory(Struct):
    pools: dict[str, PoolMemory] = field(default_factory=dict)
    without_data: float | None = None  # s: since when a needed guard has no data
    errors_before: float = 0.0  # 0–1 of control's requests when last seen, for the breaker during the bake

    def of(self, pool: str, generation: int, now: float) -> PoolMemory:
        """The pool's memory, without the lives and windows of earlier generations."""
        known = self.pools.setdefault(pool, PoolMemory(since=now, generation=generation))
        if known.generation != generation:
            known.generation, known.since, known.lives, known.windows = generation, now, {}, []
        return known


def at_start(kept: Memory, blocks: int) -> Memory:
    """The memory at the start of a step, also after a hold or a pause: only the first `blocks` blocks are kept."""
    pools = {
        name: PoolMemory(blocks=[block for block in pool.blocks if block.number < blocks], judged=pool.judged)
        for name, pool in kept.pools.items()
        if blocks
    }
    return Memory(pools, errors_before=kept.errors_before)


def load(stored: object) -> Memory:
    """Empty before the first look, or if another version of Weir wrote another format."""
    try:
        return msgspec.convert(stored, Memory, strict=False)
    except msgspec.ValidationError:
        return Memory()
