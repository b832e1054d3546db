"""A switchback: the live version and the candidate alternate on the whole pool, in pairs of blocks of time. Pure. Arms
that share engines share queues, so a canary's difference is biased; here the whole pool is under one version at a time,
and a pair of adjacent blocks is one observation (Bojinov, Simchi-Levi and Zhao 2023). The interval is evaluated once,
when all pairs are complete.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.memory import Block
from controlplane.traffic.deliveries.judge.statistics import comparisons, student
from controlplane.traffic.deliveries.judge.sums import Evidence, added, added_arm
from controlplane.traffic.deliveries.judge.verdicts import Levels, in_unit, left_out, levels_of, sentence, verdict_of
from controlplane.traffic.deliveries.plan.types import NEEDED, OCCURS, ComparisonGuard, Plan
from fleet.counted import percent
from router.contract.redis.delivery import Arm, CellTally, DeliveryTally

# A block's mean ln ms at equal length, or a share; None if the block has too little data
Level = Callable[[CellTally], float | None]


def begun(blocks: Sequence[Block], number: int, candidate: bool, generation: int) -> list[Block]:
    """Return the blocks, followed by a new block for this generation."""
    return [*(each for each in blocks if each.number != number), Block(number, candidate, {}, generation)]


def counted(block: Block, tallies: Sequence[DeliveryTally]) -> Block:
    """Update the block from the routers' reports for its generation, because a late answer counts in the block that
    decided it. Routers forget old generations one after another, so a tally that has shrunk is ignored.
    """
    arm: Arm = "candidate" if block.candidate else "control"
    cells = added_arm([tally.cells.get(arm, {}) for tally in tallies])
    found = replace(block, classes={name: added(each.values()) for name, each in cells.items() if each})
    grown = all(found.total(field) >= block.total(field) for field in ("n", "ended"))
    return found if grown else block


def unended(blocks: Sequence[Block]) -> int:
    return sum(block.total("n") - block.total("ended") for block in blocks)


def as_evidence(blocks: Sequence[Block]) -> Evidence:
    """Return all blocks as evidence, each as a cell."""
    cells: dict[Arm, dict[str, dict[int, CellTally]]] = {"candidate": {}, "control": {}}
    for block in blocks:
        for name, tally in block.classes.items():
            cells["candidate" if block.candidate else "control"].setdefault(name, {})[block.number] = tally
    return Evidence(cells)


def judge(blocks: Sequence[Block], plan: Plan, *, final: bool, earlier: int = 0) -> list[GuardFinding]:
    """Judge the pairs of blocks. With `final`, all blocks are over; before that, there are estimates but no verdicts.
    `earlier` is the number of earlier judgements. Each judgement with more pairs has half the levels of the previous
    one, so that together they are wrong at most twice as often as the first.
    """
    levels = levels_of(plan)
    levels = Levels(levels.fail / 2**earlier, levels.fine / 2**earlier)
    found = [
        compare(blocks, guard, name, levels, plan.pairs)
        for guard in plan.guards
        if isinstance(guard, ComparisonGuard)
        for name in guard.classes
    ]
    return left_out(found, as_evidence(blocks), plan) if final else [_open(each) for each in found]


def _open(finding: GuardFinding) -> GuardFinding:
    return replace(finding, verdict="inconclusive") if finding.verdict in ("fail", "fine") else finding


def compare(blocks: Sequence[Block], guard: ComparisonGuard, name: str, levels: Levels, pairs: int) -> GuardFinding:
    tallies = {block.number: block.classes.get(name, CellTally()) for block in blocks}
    n = _requests(blocks, name, candidate=True), _requests(blocks, name, candidate=False)
    finding = GuardFinding(
        metric=guard.metric,
        request_class=name,
        verdict="no_data",
        text="",
        n=n,
        worse=guard.worse,
        fine=guard.fine,
        needed=guard.metric in NEEDED,
    )
    if sum(n) < OCCURS * sum(tally.n for block in blocks for tally in block.classes.values()):
        text = f"fewer than {percent(OCCURS)} of the requests are {name}: not judged"
        return replace(finding, verdict="not_judged", text=text)
    found = _differences(blocks, tallies, _level_of(guard.metric, tallies.values()))
    complete = replace(finding, cells=(float(len(found)), float(len(found))))
    if len(found) < pairs:
        text = f"{len(found)} of {pairs} pairs of blocks have enough {name} requests"
        return replace(complete, text=text, estimate=_estimate(guard, found))
    return _judged(complete, guard, found, levels)


def _requests(blocks: Sequence[Block], name: str, *, candidate: bool) -> int:
    return sum(block.classes[name].n for block in blocks if block.candidate is candidate and name in block.classes)


def _level_of(metric: str, tallies: Iterable[CellTally]) -> Level:
    if metric == "slow":
        return lambda tally: tally.slow / tally.streamed if tally.streamed >= comparisons.LEAST_REQUESTS else None
    moments = [getattr(tally, metric) for tally in tallies]
    filled = [each for each in moments if each.n]
    slope = comparisons.pooled_slope(filled) if filled else 0.0

    def level(tally: CellTally) -> float | None:
        each = getattr(tally, metric)
        return (each.y - slope * each.x) / each.n if each.n >= comparisons.LEAST_REQUESTS else None

    return level


def _differences(blocks: Sequence[Block], tallies: Mapping[int, CellTally], level: Level) -> list[float]:
    """Return candidate minus control of each pair whose blocks both have enough requests."""
    found = []
    arms = {block.number: block.candidate for block in blocks}
    for first in sorted(number for number in arms if number % 2 == 0 and number + 1 in arms):
        earlier, later = level(tallies[first]), level(tallies[first + 1])
        if earlier is not None and later is not None:
            found.append(earlier - later if arms[first] else later - earlier)
    return found


def _estimate(guard: ComparisonGuard, found: Sequence[float]) -> float | None:
    """Return the estimate so far, without a verdict."""
    return in_unit(guard.metric, sum(found) / len(found)) if found else None


def _judged(finding: GuardFinding, guard: ComparisonGuard, found: Sequence[float], levels: Levels) -> GuardFinding:
    count = len(found)
    mean = sum(found) / count
    se = math.sqrt(sum((each - mean) ** 2 for each in found) / (count - 1) / count)
    relative = guard.metric in NEEDED
    low, middle, high = (
        math.expm1(value) if relative else value
        for value in (
            mean - se * student.quantile(1 - levels.fail, count - 1),
            mean,
            mean + se * student.quantile(1 - levels.fine, count - 1),
        )
    )
    text = f"{count} pairs of blocks: {sentence(guard, finding.request_class, low, middle, high)}"
    return replace(finding, verdict=verdict_of(guard, low, high), text=text, estimate=middle, lower=low, upper=high)
