"""Judges the guards of a plan by the evidence of one pool, with a finding for each. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from msgspec.structs import replace

from controlplane.traffic.deliveries.judge.findings import GuardFinding, Verdict
from controlplane.traffic.deliveries.judge.statistics import comparisons
from controlplane.traffic.deliveries.judge.statistics.comparisons import Counted, Estimate
from controlplane.traffic.deliveries.judge.sums import Evidence
from controlplane.traffic.deliveries.plan.types import (
    NEEDED,
    OCCURS,
    RARE,
    Canary,
    ComparisonGuard,
    Count,
    CountGuard,
    Plan,
    Switchback,
)
from fleet.counted import decimals_apart, percent, times
from router.contract.redis.delivery import Arm

ARMS: tuple[Arm, Arm] = ("candidate", "control")
SIZES_ALPHA = 0.001  # level of the check of the arms' sizes
LEAST_SESSIONS = 16  # expected sessions in the smaller arm
OCCURS_FROM = 300  # requests from which a class may count as rare
UNITS = {"ttft": "TTFT", "tpot": "TPOT"}
SUBJECTS = {**{metric: f"{{}} {unit}" for metric, unit in UNITS.items()}, "slow": "slow {} requests"}
ARM_WORDS = ("the candidate's arm", "control")


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of a judgement.
    A single wrong failure ends a delivery, so all comparisons of all steps share α. A step passes only when every
    comparison is fine, so each may use the whole α (intersection-union test, Berger 1982).
    """

    fail: float
    fine: float


def levels_of(plan: Plan) -> Levels:
    looks_at = sum(len(guard.classes) for guard in plan.guards if isinstance(guard, ComparisonGuard))
    looks_at += sum(isinstance(guard, CountGuard) for guard in plan.guards)
    return Levels(plan.alpha / max(looks_at * max(plan.canaries, 1) * max(len(plan.pools), 1), 1), plan.alpha)


def judge(evidence: Evidence, plan: Plan, share: float) -> list[GuardFinding]:
    """Judge a canary of this share: first the arms' sizes, then the guards in their order."""
    levels = levels_of(plan)
    found = [sizes(evidence, share)]
    for guard in plan.guards:
        if isinstance(guard, ComparisonGuard):
            found += [compare(evidence, guard, name, levels) for name in guard.classes]
        elif isinstance(guard, CountGuard):
            found.append(count(evidence, guard, levels))
    return found


# Comparisons


def compare(evidence: Evidence, guard: ComparisonGuard, name: str, levels: Levels) -> GuardFinding:
    """Compare the arms in one class."""
    finding = partial(
        GuardFinding,
        metric=guard.metric,
        request_class=name,
        worse=guard.worse,
        fine=guard.fine,
        needed=guard.metric in NEEDED,
    )
    if is_rarer(evidence, name, OCCURS):
        return finding(
            verdict="not_judged", text=f"fewer than {percent(OCCURS)} of the requests are {name}: not judged"
        )
    estimate = estimated(evidence, guard.metric, name)
    if estimate is None or not estimate.is_enough:
        return finding(
            verdict="no_data",
            text=f"{SUBJECTS[guard.metric].format(name)}: {_too_few(estimate)}",
            n=estimate.n if estimate else (0, 0),
            cells=estimate.cells if estimate else (0.0, 0.0),
            candidate=_of_candidate(guard.metric, estimate) if estimate else None,
            control=_level(guard.metric, estimate.control) if estimate else None,
        )
    low, high = (in_unit(guard.metric, end) for end in (estimate.lower(levels.fail), estimate.upper(levels.fine)))
    middle = in_unit(guard.metric, estimate.difference)
    return finding(
        verdict=verdict_of(guard, low, high),
        text=sentence(guard, name, low, middle, high),
        estimate=middle,
        lower=low,
        upper=high,
        n=estimate.n,
        cells=estimate.cells,
        candidate=_of_candidate(guard.metric, estimate),
        control=_level(guard.metric, estimate.control),
    )


def _of_candidate(metric: str, estimate: Estimate) -> float:
    """Return the level of the candidate's arm, even for too few requests; pages draw such a level in a pale colour."""
    control, middle = _level(metric, estimate.control), in_unit(metric, estimate.difference)
    return control * (1 + middle) if metric in NEEDED else control + middle


def is_rarer(evidence: Evidence, name: str, than: float) -> bool:
    """Return whether the class has less than this share of the requests."""
    every = sum(tally.n for arm in ARMS for tally in evidence.tallies(arm))
    mine = sum(tally.n for cells in evidence.both(name) for tally in cells)
    return every >= OCCURS_FROM and mine < than * every


def estimated(evidence: Evidence, metric: str, name: str) -> Estimate | None:
    candidate, control = evidence.both(name)
    if metric == "slow":
        return comparisons.shares(*([(cell.slow, cell.streamed) for cell in cells] for cells in (candidate, control)))
    return comparisons.adjusted(*([getattr(cell, metric) for cell in cells] for cells in (candidate, control)))


def in_unit(metric: str, difference: float) -> float:
    """Return the difference in the guard's unit: relative, or points of the share."""
    if metric not in NEEDED:
        return difference
    return math.expm1(difference) if difference < 700 else math.inf


def _level(metric: str, mean: float) -> float:
    return math.exp(mean) if metric in NEEDED else mean


def verdict_of(guard: ComparisonGuard, low: float, high: float) -> Verdict:
    """Return the verdict on a difference between `low` and `high`, in the guard's unit."""
    if low > guard.worse:
        return "fail"
    return "fine" if guard.fine is not None and high <= guard.fine else "inconclusive"


def _too_few(estimate: Estimate | None) -> str:
    """Return (the arm with too few requests or cells to compare, how many it has)."""
    n, cells = (estimate.n, estimate.cells) if estimate else ((0, 0), (0.0, 0.0))
    arm = min((0, 1), key=lambda at: (n[at], cells[at]))
    if n[arm] < comparisons.LEAST_REQUESTS:
        return f"{n[arm]} of {comparisons.LEAST_REQUESTS} requests in {ARM_WORDS[arm]}"
    arm = min((0, 1), key=lambda at: cells[at])
    return f"{cells[arm]:.1f} of {comparisons.LEAST_CELLS} effective cells in {ARM_WORDS[arm]}"


def shown(metric: str, name: str, middle: float) -> str:
    """Format an estimate, `middle`, in the unit of the metric."""
    value = times(1 + middle) if metric in NEEDED else f"{100 * middle:+.1f} points"
    return f"{SUBJECTS[metric].format(name)} {value}"


def sentence(guard: ComparisonGuard, name: str, low: float, middle: float, high: float) -> str:
    """Describe a comparison: warm TTFT 2.99× slower (1.68–5.01×, limit 1.25×); `low`, `middle`, `high` are in the
    metric's unit. For a guard that does not fail, give the margin that is certain: if the limit were shown beside an
    interval that contains it, the reader might think that the limit holds.
    """
    said, relative = shown(guard.metric, name, middle), guard.metric in NEEDED
    lower, upper = (end_of(guard.metric, end, guard.worse, guard.fine) for end in (low, high))
    bounds = f"{lower}–{upper}×" if relative else f"{lower} to {upper}"
    if low <= guard.worse:
        return f"{said} ({bounds}): {margin(guard.metric, low, high, guard.worse, guard.fine)}"
    if relative:
        return f"{said} slower ({bounds}, limit {times(1 + guard.worse)})"
    return f"{said} (at least {lower}, limit {100 * guard.worse:+.3g})"


def end_of(metric: str, end: float, *limits: float | None) -> str:
    """Format an end of an interval without its unit, with enough digits to differ from the limits beside it: 1.252
    beside 1.25×."""
    if math.isinf(end):
        return f"{100 * end:+.1f}" if metric not in NEEDED else f"{max(0.0, 1 + end):.2f}"
    if metric in NEEDED:
        return times(1 + end, *(None if limit is None else 1 + limit for limit in limits)).removesuffix("×")
    value = 100 * end
    decimals = decimals_apart(value, [None if limit is None else 100 * limit for limit in limits], 1)
    return f"{value:+.{decimals}f}"


# Counts


def count(evidence: Evidence, guard: CountGuard, levels: Levels) -> GuardFinding:
    candidate, control = (_counted(evidence, arm, guard.metric) for arm in ARMS)
    value = comparisons.e_value(candidate, control, guard.ratio)
    noun = "an error" if guard.metric == "errors" else "a refusal"
    arms = [f"{arm.hits} of {arm.sessions}" for arm in (candidate, control)]
    return GuardFinding(
        metric=guard.metric,
        verdict="fail" if value >= 1 / levels.fail else "inconclusive",
        text=f"{arms[0]} sessions with {noun}, {arms[1]} in control",
        candidate=candidate.rate,
        control=control.rate,
        worse=guard.ratio,
        n=(candidate.sessions, control.sessions),
        e_value=value,
    )


def _counted(evidence: Evidence, arm: Arm, metric: Count) -> Counted:
    sessions = sum(tally.sessions for tally in evidence.tallies(arm))
    hits = sum(getattr(tally, metric) for tally in evidence.tallies(arm))
    return Counted(max(sessions, hits), hits)


# The arms


def sizes(evidence: Evidence, share: float) -> GuardFinding:
    """Judge whether the candidate has its share of sessions; if not, the sums cannot be trusted."""
    arms: dict[Arm, dict[int, int]] = {arm: evidence.sessions(arm) for arm in ARMS}
    candidate, control = (sum(cells.values()) for cells in arms.values())
    finding = partial(GuardFinding, metric="arms", n=(candidate, control), worse=share)
    total = candidate + control
    if total * min(share, 1 - share) < LEAST_SESSIONS:
        return finding(verdict="no_data", text=f"{total} sessions: too few to see how large the arms are")
    found = candidate / total
    off = [arms["candidate"].get(cell, 0) - share * n for cell, n in _sessions(arms).items()]
    squares = sum(difference * difference for difference in off)
    se = max(math.sqrt(squares) / total, math.sqrt(share * (1 - share) / total))
    half = comparisons.half_width(se, total * share * (1 - share), SIZES_ALPHA / 2)
    return finding(
        verdict="error" if abs(found - share) > half else "fine",
        text=f"the candidate has {percent(found, '.1f')} of {total} sessions, expected {percent(share, '.3g')}",
        estimate=found,
        lower=max(0.0, found - half),
        upper=min(1.0, found + half),
    )


def _sessions(arms: dict[Arm, dict[int, int]]) -> dict[int, int]:
    cells = sorted({cell for sessions in arms.values() for cell in sessions})
    return {cell: sum(sessions.get(cell, 0) for sessions in arms.values()) for cell in cells}


def problems(evidence: Evidence) -> tuple[GuardFinding, ...]:
    return tuple(GuardFinding(metric="tallies", verdict="error", text=text) for text in evidence.problems)


# The meaning of an interval for a guard's limits: the harm it shows, and the text of the certain margin


class Harm(StrEnum):
    BEYOND = "beyond"  # the whole interval is worse than the limit
    WORSE = "worse"  # the whole interval is worse than control, and possibly beyond the limit
    SLIGHT = "slight"  # the whole interval is worse than control, and no part is beyond the limit
    WITHIN = "within"  # the interval includes control or is better, and no part is beyond the limit
    UNKNOWN = "unknown"  # the interval includes both control and the limit: there are too few requests to tell


def harm(lower: float | None, upper: float | None, worse: float) -> Harm:
    """Classify an interval. Bounds and limit are relative or in points; an absent bound is infinite."""
    low, high = -math.inf if lower is None else lower, math.inf if upper is None else upper
    if low > worse:
        return Harm.BEYOND
    if low > 0:
        return Harm.SLIGHT if high <= worse else Harm.WORSE
    return Harm.WITHIN if high <= worse else Harm.UNKNOWN


def margin(metric: str, lower: float | None, upper: float | None, worse: float, fine: float | None) -> str:
    """Describe the certain margin, as in "surely less than 2.00× slower; 1.25× not excluded"."""
    high = math.inf if upper is None else upper
    limits = sorted({worse, *(() if fine is None else (fine,))})
    sure = next((limit for limit in limits if high <= limit), None)
    possible = [limit for limit in limits if limit < high and limit <= worse]
    parts = [
        _surely(metric, lower, high),
        "" if sure is None or high < 0 else f"surely less than {_limit(metric, sure)} {_comparative(metric)}",
        f"{_limit(metric, max(possible))} not excluded" if possible and (lower is None or lower <= worse) else "",
    ]
    return "; ".join(filter(None, parts))


def _surely(metric: str, lower: float | None, high: float) -> str:
    if high < 0:
        return f"surely {'faster' if metric in NEEDED else 'fewer'} than control"
    return f"surely {_comparative(metric)} than control" if lower is not None and lower > 0 else ""


def _comparative(metric: str) -> str:
    return "slower" if metric in NEEDED else "more"


def _limit(metric: str, limit: float) -> str:
    return times(1 + limit) if metric in NEEDED else f"{100 * limit:.3g} points"


# Lets a canary leave classes that are too rare to wait for to a later step. A class with a twentieth of the requests
# takes ten times as long to judge as a class with half of them. If a later step judges it with more requests, a canary
# passes as soon as the other classes are fine. Failures still count.


def deferred(
    findings: Sequence[GuardFinding], evidence: Evidence, plan: Plan, step: int, share: float
) -> tuple[GuardFinding, ...]:
    """Return the findings of a canary with this share; rare classes are deferred if a later step judges them.
    At least one comparison is kept, so that a pool with little traffic counts as without data.
    """
    later = next((each for each in plan.steps[step + 1 :] if isinstance(each, Canary | Switchback)), None)
    if later is None:
        return tuple(findings)
    where = f"at {percent(later.share, '.3g')}" if isinstance(later, Canary) else "in the switchback"
    why = f"too rare at {percent(share, '.3g')} to wait for: judged {where}"
    return _unless_all(findings, tuple(_deferred(each, evidence, plan, why) for each in findings))


def left_out(findings: Sequence[GuardFinding], evidence: Evidence, plan: Plan) -> list[GuardFinding]:
    """Return the findings of a finished switchback. No later step judges rare classes, so classes with too few pairs
    are left out; otherwise they would keep a good candidate from passing."""
    why = "too rare for blocks of this length: not judged"
    found = [_deferred(each, evidence, plan, why, ("no_data",)) for each in findings]
    return list(_unless_all(findings, found))


def _unless_all(before: Sequence[GuardFinding], after: Sequence[GuardFinding]) -> tuple[GuardFinding, ...]:
    waits = any(each.needed and each.verdict not in ("deferred", "not_judged") for each in after)
    return tuple(after if waits else before)


def _deferred(
    finding: GuardFinding,
    evidence: Evidence,
    plan: Plan,
    why: str,
    verdicts: Sequence[Verdict] = ("no_data", "inconclusive"),
) -> GuardFinding:
    is_open = finding.needed and finding.verdict in verdicts
    if not is_open or not is_rarer(evidence, finding.request_class, RARE):
        return finding
    harm = next(_pointing_to_harm(evidence, finding.request_class, plan), "")
    if harm:
        return replace(finding, text=f"{finding.text}; this step waits for it: {harm} so far")
    return replace(finding, verdict="deferred", text=f"{finding.text}; {why}")


def _pointing_to_harm(evidence: Evidence, name: str, plan: Plan) -> Iterator[str]:
    """Yield the class's comparisons that exceed `worse` by more than their standard error."""
    for guard in plan.guards:
        if not isinstance(guard, ComparisonGuard) or name not in guard.classes:
            continue
        estimate = estimated(evidence, guard.metric, name)
        if estimate is not None and in_unit(guard.metric, estimate.difference - estimate.se) > guard.worse:
            yield shown(guard.metric, name, in_unit(guard.metric, estimate.difference))
