"""The findings of one pool in one look, for each kind of step. Pure but for what it remembers."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from controlplane.deliveries.judge import breaker, pool_guards, rare, shadow, switchback, verdicts
from controlplane.deliveries.judge.findings import GuardFinding
from controlplane.deliveries.judge.look import Situation
from controlplane.deliveries.judge.memory import Memory, PoolMemory
from controlplane.deliveries.judge.sums import Evidence, added, gather
from controlplane.deliveries.judge.traffic import Traffic
from controlplane.deliveries.plan import CountGuard, PoolGuard, Shadow, Switchback
from controlplane.deliveries.states import State
from router.contract.redis.delivery import Arm, CellTally
from router.policy.types import CLASSES

BEHIND_S = 5.0  # a router that does not split as it should for so long


@dataclass(frozen=True, slots=True)
class Looked:
    """What is in force."""

    generation: int
    share: float  # 0–1
    blocks: tuple[int, ...]  # of a switchback
    previewed: Callable[[str], tuple[float, float] | None]  # by pool: share of changed decisions


def findings_of(
    at: Situation, looked: Looked, pool: str, traffic: Traffic, kept: Memory, now: float
) -> list[GuardFinding]:
    mine = kept.of(pool, looked.generation, now)
    if at.state is State.BAKING:
        found = [_after_promotion(traffic, pool, kept.errors_before)]
    else:
        found = _of_split(at, looked, pool, traffic, kept, now)
    found += [_of_pool(guard, traffic, pool, mine, now) for guard in at.plan.guards if isinstance(guard, PoolGuard)]
    return [replace(each, pool=pool) for each in found]


def _of_split(
    at: Situation, looked: Looked, pool: str, traffic: Traffic, kept: Memory, now: float
) -> list[GuardFinding]:
    mine, step = kept.of(pool, looked.generation, now), at.current
    if not looked.share and not isinstance(step, Shadow | Switchback):
        return []  # set aside: no request goes to the candidate
    tallies, unreadable = traffic.of(pool, looked.generation)
    evidence, mine.lives = gather(tallies, unreadable, traffic.serving(pool), mine.lives, mine.since, now)
    found = [*verdicts.problems(evidence), *_behind(traffic, pool, looked.generation, mine, now)]
    if isinstance(step, Shadow):
        return [*found, *shadow.judge(evidence.shadow, looked.previewed(pool))]
    found.append(_breaker(evidence, mine, now))
    if isinstance(step, Switchback):
        return [*found, *_of_blocks(at, looked, evidence, mine, step)]
    kept.errors_before = _error_share(evidence)
    judged = verdicts.judge(evidence, at.plan, looked.share)
    return [*found, *rare.deferred(judged, evidence, at.plan, at.step, looked.share)]


def _behind(traffic: Traffic, pool: str, generation: int, mine: PoolMemory, now: float) -> list[GuardFinding]:
    names = traffic.behind(pool, generation)
    if not traffic.serving(pool):
        return [GuardFinding(metric="routers", verdict="error", text="no router serves the pool")]
    if not names:
        mine.behind = None
        return []
    mine.behind = now if mine.behind is None else mine.behind
    if now - mine.behind < BEHIND_S:
        return []
    text = f"not split as they should for {now - mine.behind:.0f} s: {', '.join(names)}"
    return [GuardFinding(metric="routers", verdict="error", text=text)]


def _breaker(evidence: Evidence, mine: PoolMemory, now: float) -> GuardFinding:
    window = breaker.window(evidence, now)
    finding = breaker.breaker(mine.windows, window)
    mine.windows = [*breaker.kept(mine.windows, now), window]
    return finding


def _error_share(evidence: Evidence) -> float:
    control = evidence.total("control")
    return control.failed / control.ended if control.ended else 0.0


def _of_blocks(
    at: Situation, looked: Looked, evidence: Evidence, mine: PoolMemory, step: Switchback
) -> list[GuardFinding]:
    candidate = bool(looked.blocks[at.block])
    mine.blocks = switchback.replaced(mine.blocks, switchback.block_of(evidence, at.block, candidate))
    whole, levels = _whole(mine), verdicts.levels_of(at.plan)
    counted = [verdicts.count(whole, guard, levels) for guard in at.plan.guards if isinstance(guard, CountGuard)]
    # The last block counts once it is over.
    over = at.clock_s >= (at.block + 1) * step.block_s
    done = [block for block in mine.blocks if over or block.number != at.block]
    return [*switchback.judge(done, at.plan, step.pairs), *counted]


def _whole(mine: PoolMemory) -> Evidence:
    """All blocks together, for counts, which have no cells."""
    cells: dict[Arm, dict[str, dict[int, CellTally]]] = {"candidate": {}, "control": {}}
    for block in mine.blocks:
        arm = cells["candidate" if block.candidate else "control"]
        for name, tally in block.classes.items():
            arm[name] = {0: added([*arm.get(name, {}).values(), tally])}
    return Evidence(cells)


def _of_pool(guard: PoolGuard, traffic: Traffic, pool: str, mine: PoolMemory, now: float) -> GuardFinding:
    windows, name = traffic.windows(pool, guard.request_class), pool_guards.key(guard)
    if pool_guards.is_above(guard, pool_guards.measure(guard, windows)):
        mine.above.setdefault(name, now)
    else:
        mine.above.pop(name, None)
    return pool_guards.judge(guard, windows, mine.above.get(name), now)


def _after_promotion(traffic: Traffic, pool: str, before: float) -> GuardFinding:
    windows = [window for name in CLASSES for window in traffic.windows(pool, name)]
    return breaker.after_promotion(sum(each.error for each in windows), sum(each.n for each in windows), before)
