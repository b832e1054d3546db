"""The data of a delivery's charts: both arms of a comparison at each look, with the guard's limit. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.pages.delivery_pages.display.evidence import title_of
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.plan.types import NEEDED, ComparisonGuard, Plan


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one class of a comparison: the levels of both arms."""

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


def charts(plan: Plan) -> tuple[Chart, ...]:
    guards = (guard for guard in plan.guards if isinstance(guard, ComparisonGuard))
    return tuple(Chart(guard.metric, name, title_of(guard.metric, name)) for guard in guards for name in guard.classes)


COLUMNS = ("candidate", "control", "limit", "lower", "upper", "n", "few")
Levels = tuple[float | None, ...]
NO_LEVELS: Levels = (None,) * len(COLUMNS)


def series(chart: Chart, looks: Sequence[SeenLook]) -> dict[str, list[float | None]]:
    """The columns of a chart, at each look: ms of TTFT and TPOT, % of slow requests.

    Levels of the candidate, of control and the limit; the candidate's level at both ends of the interval; the
    candidate's requests; and whether they are too few to compare, 1 or 0. Each step counts anew, so there is a gap
    between two steps: a look of the new one without a level yet.
    """
    rows = [_levels(chart, look) for look in looks]
    return {name: [row[column] for row in rows] for column, name in enumerate(COLUMNS)}


def _levels(chart: Chart, look: SeenLook) -> Levels:
    for each in look.findings:
        if (each.metric, each.request_class) != (chart.metric, chart.request_class):
            continue
        if each.candidate is None or each.control is None or each.worse is None:
            break
        few = float(each.verdict == "no_data" or each.estimate is None)
        ends = (_beside(each.control, share, chart.metric) for share in (each.worse, each.lower, each.upper))
        scale = 1 if chart.metric in NEEDED else 100
        return scale * each.candidate, scale * each.control, *ends, float(each.n[0]), few
    return NO_LEVELS


def _beside(control: float, difference: float | None, metric: str) -> float | None:
    """The level that differs from control's by so much."""
    if difference is None:
        return None
    return control * (1 + difference) if metric in NEEDED else 100 * (control + difference)
