"""The data of a delivery's charts, for each look. Pure. Contains the difference of each comparison with its interval
and the guard's limits, the levels of both arms, and the candidate's share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec import Struct

from controlplane.pages.delivery_pages.display.evidence import title_of
from controlplane.pages.delivery_pages.display.steps import title
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.plan.types import COMPARISONS, NEEDED, Canary, ComparisonGuard, Plan


@dataclass(frozen=True, slots=True)
class ClassCharts:
    """The charts of one class of a comparison: its difference, and the levels of both arms."""

    metric: str
    request_class: str
    title: str

    @property
    def key(self) -> str:
        return f"{self.metric}-{self.request_class}"


@dataclass(frozen=True, slots=True)
class SeenLook:
    at: float  # Unix seconds
    step: int
    findings: Sequence[GuardFinding]


def charts(plan: Plan) -> tuple[ClassCharts, ...]:
    guards = (guard for guard in plan.guards if isinstance(guard, ComparisonGuard))
    return tuple(
        ClassCharts(guard.metric, name, title_of(guard.metric, name)) for guard in guards for name in guard.classes
    )


COLUMNS = (
    *("candidate", "control", "limit", "lower", "upper", "n", "few"),
    *("difference", "from", "to", "worse", "enough"),
)
Levels = tuple[float | None, ...]
NO_LEVELS: Levels = (None,) * len(COLUMNS)


def series(chart: ClassCharts, looks: Sequence[SeenLook]) -> dict[str, list[float | None]]:
    """Return the columns of a comparison, for each look: ms of TTFT and TPOT, % of slow requests. Levels of the
    candidate, of control and the limit; the candidate's level at both ends of the interval; the candidate's requests;
    whether they are too few to compare, 1 or 0. Then the difference, as a ratio for TTFT and TPOT and in points for
    slow requests, the ends of its interval, and the limits for failing and for continuing. Each step starts counting
    from zero, so there is a gap between two steps: a look of the new step without a level.
    """
    rows = [_levels(chart, look) for look in looks]
    return {name: [row[column] for row in rows] for column, name in enumerate(COLUMNS)}


def _levels(chart: ClassCharts, look: SeenLook) -> Levels:
    for each in look.findings:
        if (each.metric, each.request_class) != (chart.metric, chart.request_class):
            continue
        if each.candidate is None or each.control is None or each.worse is None:
            break
        few = float(each.verdict == "no_data" or each.estimate is None)
        ends = (_beside(each.control, share, chart.metric) for share in (each.worse, each.lower, each.upper))
        scale = 1 if chart.metric in NEEDED else 100
        levels = scale * each.candidate, scale * each.control, *ends, float(each.n[0]), few
        return *levels, *(_apart(share, chart.metric) for share in _differences(each))
    return NO_LEVELS


def _differences(finding: GuardFinding) -> tuple[float | None, ...]:
    return finding.estimate, finding.lower, finding.upper, finding.worse, finding.fine


def _apart(difference: float | None, metric: str) -> float | None:
    """Return the difference from control as a ratio (1.04) or in points."""
    if difference is None:
        return None
    return 1 + difference if metric in NEEDED else 100 * difference


def exposure(plan: Plan, looks: Sequence[SeenLook]) -> dict[str, list[float | None]]:
    """Return the candidate's share in % at each look of a canary: the share assigned by the step, and the share in
    which its requests arrived."""
    steps = [plan.steps[look.step] if look.step < len(plan.steps) else None for look in looks]
    counted = [_counted(look.findings) for look in looks]
    return {
        "assigned": [100 * step.share if isinstance(step, Canary) else None for step in steps],
        "actual": [100 * own / (own + other) if own + other else None for own, other in counted],
        "n": [float(own) for own, _ in counted],
    }


def _counted(findings: Sequence[GuardFinding]) -> tuple[int, int]:
    """Return the requests of the candidate and of control, counting each class once."""
    by_class = {(each.pool, each.request_class): each.n for each in findings if each.metric in COMPARISONS}
    return sum(own for own, _ in by_class.values()), sum(other for _, other in by_class.values())


def _beside(control: float, difference: float | None, metric: str) -> float | None:
    """Return the level that differs from control's level by this difference."""
    if difference is None:
        return None
    return control * (1 + difference) if metric in NEEDED else 100 * (control + difference)


# The history of a delivery, built from entries of the audit log
WORDS: Mapping[str, str] = {
    "propose": "Proposed",
    "approve": "Approved",
    "reject": "Rejected",
    "expire": "Expired",
    "withdraw": "Withdrawn",
    "start": "Started",
    "miss": "Missed its start",
    "late": "Paused: a router has not loaded the candidate",
    "block": "Changed sides",
    "hold": "Put on hold",
    "good": "Hold ended",
    "pause": "Paused",
    "resume": "Resumed",
    "extend": "Extended by pairs of blocks",
    "give_up": "Aborted after a day's pause",
    "abort": "Aborted",
    "fail": "Stopped by guard",
    "trip": "Stopped by router",
    "overtake": "Aborted by another publication",
    "roll_back": "Rolled back",
    "deliver": "Delivered",
    "explain": "Reason added",
}
NAMED = ("fail", "trip")  # transitions whose text already names the actor
ENTERS = ("armed", "pass", "advance")  # transitions that begin a step


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    at: datetime
    what: str
    who: str  # empty if `what` names the actor
    why: str


class StepReached(Struct, frozen=True):
    """The state of the delivery after the timeline's entry."""

    state: str = ""
    step: int = 0


def entry(at: datetime, action: str, who: str, why: str, after: StepReached, plan: Plan) -> TimelineEntry:
    verb = action.removeprefix("delivery.")
    return TimelineEntry(at, _what(verb, after, plan), "" if verb in NAMED else who, why)


def _what(verb: str, after: StepReached, plan: Plan) -> str:
    state = after.state
    if verb in ("fail", "abort") and state == "rolled_back":
        return "Rolled back by guard" if verb == "fail" else "Rolled back"
    if verb in ENTERS:
        return {
            "waiting": "Passed; asks to continue",
            "baking": "Live for everyone",
            "finished": "Finished: the last step passed",
        }.get(state) or f"{title(plan.steps[min(after.step, len(plan.steps) - 1)])} began"
    if verb == "start" and state == "baking":
        return "Live for everyone"
    if verb == "hold" and state == "paused":
        return "Paused after the third hold of the step"
    return WORDS.get(verb, verb.replace("_", " ").capitalize())
