"""Both arms of a comparison over the looks of a delivery, with the guard's limit: what its charts draw. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.deliveries.judge.findings import GuardFinding
from controlplane.deliveries.plan import NEEDED, ComparisonGuard, Plan
from controlplane.delivery_pages.display.evidence import title_of


@dataclass(frozen=True, slots=True)
class Chart:
    """One for each class of a comparison: they have the levels of both arms."""

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

    Each step counts anew, so a gap stands between two steps: a look of the new one that has no level yet.
    """
    found = [_levels(chart, look) for look in looks]
    return {name: [each[place] for each in found] for place, name in enumerate(("candidate", "control", "limit"))}


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
