"""The data of a delivery's charts: both arms of a comparison at each look, with the guard's limit. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.deliveries.judge.findings import GuardFinding
from controlplane.deliveries.plan.types import NEEDED, ComparisonGuard, Plan
from controlplane.delivery_pages.display.evidence import title_of


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


def series(chart: Chart, looks: Sequence[SeenLook]) -> dict[str, list[float | None]]:
    """Levels of the candidate, of control, and the limit, at each look: ms of TTFT and TPOT, % of slow requests.

    Each step counts anew, so there is a gap between two steps: a look of the new one without a level yet.
    """
    rows = [_levels(chart, look) for look in looks]
    return {name: [row[column] for row in rows] for column, name in enumerate(("candidate", "control", "limit"))}


def _levels(chart: Chart, look: SeenLook) -> tuple[float | None, float | None, float | None]:
    for each in look.findings:
        if (each.metric, each.request_class) != (chart.metric, chart.request_class):
            continue
        if each.candidate is None or each.control is None or each.worse is None:
            break
        if chart.metric in NEEDED:
            return each.candidate, each.control, each.control * (1 + each.worse)
        return 100 * each.candidate, 100 * each.control, 100 * (each.control + each.worse)
    return None, None, None
