"""The findings of one look at one pool, for each kind of step. Pure, except that it updates the memory."""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from controlplane.traffic.deliveries.judge import look, pool_guards, prometheus, shadow, switchback, verdicts
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.look import Situation
from controlplane.traffic.deliveries.judge.memory import Block, EndedCounts, Memory, PoolMemory
from controlplane.traffic.deliveries.judge.prometheus import QueryResults
from controlplane.traffic.deliveries.judge.sums import Evidence, Traffic, gather
from controlplane.traffic.deliveries.plan.types import CountGuard, PoolGuard, PrometheusGuard, Shadow, Switchback
from controlplane.traffic.deliveries.states import State
from router.policy.types import CLASSES

BEHIND_S = 5.0  # time for which a router may split wrongly before it matters
LATE_S = 60.0  # time for which a switchback waits for answers after its last block


@dataclass(frozen=True, slots=True)
class LookInputs:
    """Inputs of a look besides the traffic: the split in effect, the previews, the answers of Prometheus."""

    generation: int
    share: float  # 0–1
    blocks: tuple[int, ...]  # blocks of a switchback
    previewed: Callable[[str], tuple[float, float] | None]  # by pool: share of changed decisions
    answers: QueryResults = field(default_factory=dict)  # answers of Prometheus


def findings_of(
    at: Situation, inputs: LookInputs, pool: str, traffic: Traffic, kept: Memory, now: float
) -> list[GuardFinding]:
    mine = kept.of(pool, inputs.generation, now)
    if at.state is State.BAKING:
        found = [_after_promotion(at, traffic, pool, kept, now)]
    else:
        found = _of_split(at, inputs, pool, traffic, kept, now)
    found += _of_queries(at, inputs, pool, mine)
    if at.state is not State.HOLDING:
        found += [_of_pool(guard, traffic, pool, mine, now) for guard in at.plan.guards if isinstance(guard, PoolGuard)]
    return [replace(each, pool=pool) for each in found]


def _of_split(
    at: Situation, inputs: LookInputs, pool: str, traffic: Traffic, kept: Memory, now: float
) -> list[GuardFinding]:
    mine, step = kept.of(pool, inputs.generation, now), at.current
    tallies, unreadable = traffic.of(pool, inputs.generation)
    evidence, mine.lives = gather(tallies, unreadable, traffic.serving(pool), mine.lives, mine.since, now)
    found = [*verdicts.problems(evidence), *_behind(traffic, pool, inputs.generation, mine, now)]
    if at.state is State.HOLDING:  # the live version decides everything; only whether the step can start again matters
        return found
    if isinstance(step, Shadow):
        return [*found, *shadow.judge(evidence.shadow, inputs.previewed(pool))]
    found.append(_breaker(evidence, mine, now))
    if isinstance(step, Switchback):
        return [*found, *_of_blocks(at, inputs, pool, traffic, mine, step)]
    kept.errors_before = _error_share(evidence)
    judged = verdicts.judge(evidence, at.plan, inputs.share)
    return [*found, *verdicts.deferred(judged, evidence, at.plan, at.step, inputs.share)]


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
    window = pool_guards.window(evidence, now)
    finding = pool_guards.breaker(mine.windows, window)
    mine.windows = [*pool_guards.kept(mine.windows, now), window]
    return finding


def _error_share(evidence: Evidence) -> float:
    control = evidence.total("control")
    return control.failed / control.judged if control.judged else 0.0


def _of_blocks(
    at: Situation, inputs: LookInputs, pool: str, traffic: Traffic, mine: PoolMemory, step: Switchback
) -> list[GuardFinding]:
    is_over = at.block == at.blocks
    if not is_over and not any(block.generation == inputs.generation for block in mine.blocks):
        mine.blocks = switchback.begun(mine.blocks, at.block, bool(inputs.blocks[at.block]), inputs.generation)
    mine.blocks = [switchback.counted(block, traffic.of(pool, block.generation)[0]) for block in mine.blocks]
    complete = [block for block in mine.blocks if block.number < at.block // 2 * 2]
    whole, levels = switchback.as_evidence(mine.blocks), verdicts.levels_of(at.plan)
    found = [verdicts.count(whole, guard, levels) for guard in at.plan.guards if isinstance(guard, CountGuard)]
    waits = _unended(complete) if is_over and at.clock_s < at.blocks * step.block_s + LATE_S else []
    return [*_judged_blocks(complete, at, mine, final=is_over and not waits), *found, *waits]


def _judged_blocks(complete: list[Block], at: Situation, mine: PoolMemory, *, final: bool) -> list[GuardFinding]:
    pairs = at.blocks // 2
    earlier = sum(each < pairs for each in mine.judged)
    if final and pairs not in mine.judged:
        mine.judged.append(pairs)
    return switchback.judge(complete, at.plan, final=final, earlier=earlier)


def _unended(blocks: list[Block]) -> list[GuardFinding]:
    left = switchback.unended(blocks)
    if not left:
        return []
    text = f"{left} answers of the blocks have not ended: waits for them for {LATE_S:.0f} s at most"
    return [GuardFinding(metric=look.UNENDED, verdict="inconclusive", text=text)]


def _of_pool(guard: PoolGuard, traffic: Traffic, pool: str, mine: PoolMemory, now: float) -> GuardFinding:
    windows, name = traffic.windows(pool, guard.request_class), pool_guards.key(guard)
    if pool_guards.is_above(guard, pool_guards.measure(guard, windows)):
        mine.above.setdefault(name, now)
    else:
        mine.above.pop(name, None)
    return pool_guards.judge(guard, windows, mine.above.get(name), now)


def _of_queries(at: Situation, inputs: LookInputs, pool: str, mine: PoolMemory) -> list[GuardFinding]:
    """Return the findings from Prometheus' answers. During a hold the candidate decides nothing, so only an error
    counts, which prevents the step from starting again.
    """
    found = []
    for guard in at.plan.guards:
        if isinstance(guard, PrometheusGuard) and (answer := inputs.answers.get((pool, guard.query))) is not None:
            finding, mine.looks[guard.query] = prometheus.judge(guard, answer, mine.looks.get(guard.query))
            found.append(finding)
    return [each for each in found if at.state is not State.HOLDING or each.verdict == "error"]


def _after_promotion(at: Situation, traffic: Traffic, pool: str, kept: Memory, now: float) -> GuardFinding:
    windows = [window for name in CLASSES for window in traffic.windows(pool, name)]
    ended = sum(window.n - window.client_error for window in windows)
    failed = sum(window.error for window in windows)
    mine = kept.pools[pool]
    mine.promoted = pool_guards.at_promotion(mine.promoted, EndedCounts(now, (ended, failed), (0, 0)))
    # Without an earlier step, the live version's last minute provides the usual share of errors.
    usual = kept.errors_before if at.step else pool_guards.share_of(mine.promoted)
    return pool_guards.after_promotion(failed, ended, usual, pool_guards.older(mine.promoted, now))
