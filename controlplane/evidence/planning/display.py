"""The page of a plan: the frontier as a picture and a table, and notes about it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from controlplane.common.figures import UNKNOWN, ms, percent, seconds, significant
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.output.scatter import AxisRange, Picture, Point, height_of, scatter
from controlplane.evidence.plan import planned
from controlplane.evidence.plan.actual import NOTHING
from controlplane.evidence.plan.figures import WITHIN
from controlplane.evidence.planning.applied import AppliedRow
from controlplane.evidence.planning.models import FleetPlan
from controlplane.evidence.previews.policy_job import left_s
from controlplane.evidence.twin.fingerprint import source_sha256
from fleet.jobs import DONE, ENDED, RUNNING

LOADS = {
    "requests_per_s": "Requests per s",
    "prompt_tokens": "Prompt tokens, mean",
    "new_tokens": "New tokens, mean",
    "output_tokens": "Output tokens, mean",
}


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    number: int
    cells: tuple[tuple[str, str], ...]  # (title, text)
    breaks_first: str
    # Holds: the cheapest that holds the SLO; undecided: a cheaper one that holds it unless engines are slower
    badge: str
    nearest: bool  # True for the fleet to draft first: it holds the SLO, or is closest


@dataclass(frozen=True, slots=True)
class ShownPlan:
    active: bool
    progress: str
    older: bool  # True if Weir computes differently since then
    verdict: str
    slo: str
    fleets: list[PlannedFleet]
    picture: Picture | None
    asked: str  # required share of each class
    asked_at: float  # height of that share in the picture
    about: list[str]  # expected errors, cautions, and what was not considered
    answer: planned.Answer | None


def shown(plan: FleetPlan, now: datetime) -> ShownPlan:
    answer: planned.Answer | None = plan.result
    rows = answer["rows"] if answer else []
    slo = plan.asked["slo"].items()
    limits = {name: {key: limit for key, limit in given.items() if limit is not None} for name, given in slo}
    return ShownPlan(
        active=plan.status not in ENDED,
        progress=progress(plan, now),
        older=plan.status == DONE and plan.source != source_sha256(),
        verdict=_percent(planned.verdict(answer)) if answer else "",
        slo="; ".join(f"{'' if name == 'all' else f'{name} '}{planned.limits_text(limits[name])}" for name in limits),
        fleets=list(_fleets(answer)) if answer else [],
        picture=picture(rows, answer["share"]) if answer and rows else None,
        asked=_percent(f"{answer['share']:.0%}") if answer else "",
        asked_at=height_of(_shares(rows, answer["share"]), answer["share"]) if answer and rows else 0.0,
        about=list(planned.cautions(answer)) if answer else [],
        answer=answer,
    )


def _fleets(answer: planned.Answer) -> Iterator[PlannedFleet]:
    nearest = answer["holds"] or max(answer["rows"], key=lambda row: row["if_slower"], default=None)
    marked = [(answer["holds"], "holds"), (answer.get("undecided"), "undecided")]  # older results lack the second
    for at, row in enumerate(answer["rows"], start=1):
        badge = next((word for other, word in marked if row == other), "")
        cells = (_percent(text) for text in planned.cells(row))
        titled = tuple(zip(planned.HEAD[1:], cells, strict=True))
        yield PlannedFleet(at, titled, row["breaks_first"], badge, row == nearest)


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    title: str
    predicted: str
    actual: str
    interval: str
    n: int
    verdict: str


def compared(found: AppliedRow) -> Iterator[ComparedFigure]:
    came = found.came or NOTHING
    for load in came.load:
        texts = significant(load.predicted), significant(load.actual), UNKNOWN
        yield ComparedFigure(LOADS[load.name], *texts, came.requests, "as planned" if load.alike else "another load")
    for one in came.figures:
        title, said = f"{one.request_class} · {METRICS[one.metric].title}", percent if one.metric == WITHIN else ms
        predicted = _range(said(one.predicted["low"]), said(one.predicted["high"]))
        interval = _range(said(one.low), said(one.high))
        yield ComparedFigure(title, predicted, said(one.actual), interval, one.n, one.verdict)


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _percent(text: str) -> str:
    return text.replace("%", "\u00a0%")


def progress(plan: FleetPlan, now: datetime) -> str:
    """Describe the progress, and the time left at the pace so far."""
    if not plan.total:
        return "finding the fleets to play" if plan.status == RUNNING else ""
    plays = f"{plan.done:,} of {plan.total:,} plays"
    left = left_s(plan, now)
    return plays if left is None else f"{plays}, about {seconds(left)} left"


def _shares(rows: list[planned.Row], asked: float) -> AxisRange:
    return AxisRange.of(
        [asked, *(share for row in rows for share in (*row["at_load"].values(), *row["within"].values()))]
    )


def _kind(row: planned.Row, load: str, asked: float) -> str:
    """Return the kind of a point: only a fleet that holds the SLO is filled with the success colour."""
    holds = row["within"]["low"] >= asked and row["if_slower"] >= asked
    return "trial" if load != "1" else "front" if holds else "short"


def picture(rows: list[planned.Row], asked: float) -> Picture:
    """Draw dollars per hour on x and the share within the SLO on y, with a point for each factor on the load."""
    points = [
        Point(
            row["dollars_per_hour"],
            share,
            6.0 if load == "1" else 4.0,
            _kind(row, load, asked),
            f"{number}" * (load == "1"),
            f"Row {number}, load × {load}: {share:.1%}",
        )
        for number, row in enumerate(rows, start=1)
        for load, share in row["at_load"].items()
    ]
    return scatter(points, _shares(rows, asked), y_text=_tick)


def _tick(text: str) -> str:
    return f"{100 * float(text):g} %" if 0 <= float(text) <= 1 else ""
