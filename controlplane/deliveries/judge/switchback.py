"""A switchback: the whole pool under live and under the candidate in turn, in pairs of blocks of time. Pure.

Arms that share engines share queues, so a canary's difference is biased; here the whole pool is under one version at a
time, and a pair of blocks next to one another is one observation (Bojinov, Simchi-Levi and Zhao 2023). The interval is
looked at once, when all pairs are complete.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from controlplane.deliveries.judge.findings import GuardFinding, Verdict
from controlplane.deliveries.judge.memory import Block
from controlplane.deliveries.judge.statistics import comparisons, student
from controlplane.deliveries.judge.sums import Evidence, added
from controlplane.deliveries.judge.verdicts import UNITS, Levels, levels_of
from controlplane.deliveries.plan import NEEDED, OCCURS, ComparisonGuard, Plan
from fleet.counted import percent
from router.contract.redis.delivery import Arm, CellTally

Level = Callable[[CellTally], float | None]  # of a block: mean ln ms at equal length, or a share; None: too little


def block_of(evidence: Evidence, number: int, candidate: bool) -> Block:
    arm: Arm = "candidate" if candidate else "control"
    classes = {name: added(cells.values()) for name, cells in evidence.cells.get(arm, {}).items() if cells}
    return Block(number, candidate, classes)


def replaced(blocks: Sequence[Block], block: Block) -> list[Block]:
    """With this one as it is now."""
    return [*(each for each in blocks if each.number != block.number), block]


def judge(blocks: Sequence[Block], plan: Plan, pairs: int) -> list[GuardFinding]:
    levels = levels_of(plan)
    return [
        compare(blocks, guard, name, levels, pairs)
        for guard in plan.guards
        if isinstance(guard, ComparisonGuard)
        for name in guard.classes
    ]


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
        return replace(complete, text=f"{len(found)} of {pairs} pairs of blocks have enough {name} requests")
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
    """Candidate minus control, of each pair in which both blocks have enough requests."""
    found = []
    arms = {block.number: block.candidate for block in blocks}
    for first in sorted(number for number in arms if number % 2 == 0 and number + 1 in arms):
        one, other = level(tallies[first]), level(tallies[first + 1])
        if one is not None and other is not None:
            found.append(one - other if arms[first] else other - one)
    return found


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
    text = f"{count} pairs of blocks: {finding.request_class} {_shown(guard.metric, low, middle, high)}"
    return replace(finding, verdict=_verdict(guard, low, high), text=text, estimate=middle, lower=low, upper=high)


def _verdict(guard: ComparisonGuard, low: float, high: float) -> Verdict:
    if low > guard.worse:
        return "fail"
    return "fine" if guard.fine is not None and high <= guard.fine else "inconclusive"


def _shown(metric: str, low: float, middle: float, high: float) -> str:
    if metric in NEEDED:
        return f"{UNITS[metric]} × {1 + middle:.2f} ({1 + low:.2f}–{1 + high:.2f})"
    return f"slow {100 * middle:+.1f} points, at least {100 * low:+.1f}"
