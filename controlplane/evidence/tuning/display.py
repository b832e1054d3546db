"""The page of a tuning: a picture of the trials, and sentences about its winners."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane.common.figures import UNKNOWN, whole
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.output.effects import (
    ComparedArm,
    EffectRow,
    ResultRow,
    cell,
    effect_row,
    result_row,
)
from controlplane.evidence.experiments.results.output.effects import shown as shown_value
from controlplane.evidence.experiments.results.output.scatter import AxisRange, Picture, Point, scatter
from controlplane.evidence.previews import policy_job
from controlplane.evidence.previews.analysis import trust
from controlplane.evidence.previews.source import TrafficPart
from controlplane.evidence.tuning import search
from controlplane.evidence.tuning.compute import Tuned
from controlplane.evidence.tuning.models import Tuning
from controlplane.evidence.tuning.space import Dimension
from controlplane.evidence.tuning.types import GoalValues, Winner, WinnerEffect
from controlplane.evidence.twin.expected_error import described
from controlplane.evidence.twin.pool_model import Modelled
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.drafts import editor
from fleet.counted import percent
from fleet.jobs import ENDED
from fleet.models import Pool
from router.contract.values.fields import number
from router.contract.values.json_value import Json, JsonObject
from router.policy.schema import document as documents
from router.policy.schema.parameters import PARAMETERS

# The findings of a tuning, and what it did not test, as sentences for its page, the API and the note of a draft
GOALS = {  # metric by objective
    "ttft": METRICS["ttft_p90_ms"],
    "tpot": METRICS["tpot_p90_ms"],
    "goodput": replace(METRICS["within_slo"], key="goodput", title="Goodput"),
}
BY_KEY = {metric.key: metric for metric in GOALS.values()}
REASONS = {
    "ttft": "lowest TTFT p90",
    "tpot": "lowest TPOT p90",
    "goodput": "highest goodput",
    "balanced": "best balance",
}


def not_tested(tuning: Tuning, pool: Pool, twin: Modelled, part: TrafficPart, tuned: Tuned) -> list[str]:
    origin = policy_job.of_origin(tuning, pool, part)
    expected = described(twin.expected)
    left_out = (*twin.cautions, *tuned.not_modelled)
    return [
        f"real engines: all was simulated in the twin ({twin.about}; expected error {expected})",
        "other traffic, other loads, other times than these requests, and other pools or numbers of instances",
        "warm caches: each part begins with empty ones, for the live version too",
        "failures, restarts and scaling of instances",
        *(() if search.is_installed() else (search.EVENLY,)),
        *(each["text"] for each in (*origin, *trust.of_requests(tuned.by_class))),
        *(f"in the twin: {text}" for text in dict.fromkeys(left_out)),
    ]


def effect(row: WinnerEffect) -> EffectRow:
    """Return a metric of a winner on the held-out requests, against the live version."""
    return effect_row(BY_KEY[row["metric"]], (row["live"], row["tuned"]), row, row["n"])


def effect_text(row: EffectRow) -> str:
    levels = f"{row.title}: {row.before} → {row.after}"
    if row.interval == UNKNOWN:
        return f"{levels}: {row.verdict}, no interval"
    return f"{levels}, {row.difference} (95 % interval {row.interval}, n = {row.n:,}): {row.verdict}"


def note(tuning: Tuning, winner: Winner) -> str:
    """Return the note of the draft."""
    result = tuning.result or {}
    held_out = winner["check"]["n"]
    return "\n".join(
        [
            f"Trial {winner['trial']} of tuning {tuning.pk}: /policies/{tuning.policy.name}/tunings/{tuning.pk}/",
            f"Simulated against v{tuning.live_version} on {tuning.trace_name}, pool {tuning.pool}: "
            f"{tuning.done} trials on the first {percent(1 - tuning.held_out)} of the requests, "
            f"checked on the last {held_out:,}, which the search never saw.",
            *(f"- {effect_text(effect(row))}" for row in winner["effect"]),
            "Not tested:",
            *(f"- {text}" for text in result.get("not_tested", ())),
        ]
    )


@dataclass(frozen=True, slots=True)
class ShownTrial:
    number: int
    kind: str  # trial, front or winner
    values: JsonObject  # values by title of the parameter
    goals: GoalValues


@dataclass(frozen=True, slots=True)
class ShownWinner:
    trial: int
    reasons: str
    changes: list[tuple[str, str, str]]  # (title of the parameter, live, tuned)


@dataclass(frozen=True, slots=True)
class ShownTuning:
    active: bool
    progress: str
    trials: list[ShownTrial]
    picture: Picture | None
    winners: list[ShownWinner]
    columns: list[ComparedArm]
    rows: list[ResultRow]  # goals on the held-out requests
    none_better: bool
    objectives: str
    bounds: list[str]
    limits: dict[str, float | None] | None
    not_tested: Sequence[str]


def shown(tuning: Tuning) -> ShownTuning:
    result = tuning.result or {}
    winners: dict[int, Winner] = {each["trial"]: each for each in result.get("winners", ())}
    kinds = dict.fromkeys(result.get("front", ()), "front") | dict.fromkeys(winners, "winner")
    trials = [
        ShownTrial(each.number, kinds.get(each.number, "trial"), _titled(each.values), each.goals)
        for each in tuning.trials.all()
    ]
    live, shown_winners = f"v{tuning.live_version}", [_winner(each, _live_values(tuning)) for each in winners.values()]
    return ShownTuning(
        active=tuning.status not in ENDED,
        progress=f"{tuning.done} of {tuning.total} trials",
        trials=trials,
        picture=picture(trials, result.get("live", {}).get("search")),
        winners=shown_winners,
        columns=[ComparedArm(live, note="live when the search began"), *map(_column, shown_winners)],
        rows=_rows(live, [*winners.values()]),
        none_better=bool(winners) and not any(_is_better(each) for each in winners.values()),
        objectives=", ".join(GOALS[name].title for name in tuning.objectives),
        bounds=[_bounds(Dimension.of(each)) for each in tuning.space],
        limits=result.get("limits"),
        not_tested=result.get("not_tested", ()),
    )


def _live_values(tuning: Tuning) -> JsonObject:
    return documents.values_of(policies.version(tuning.policy, tuning.live_version).upgraded)


def _is_better(winner: Winner) -> bool:
    return any(row["verdict"] == "better" for row in winner["effect"])


def _named(path: str) -> str:
    return PARAMETERS[path].title if path in PARAMETERS else path


def _text(path: str, value: Json) -> str:
    return editor.shown(value, PARAMETERS[path].unit if path in PARAMETERS else "")


def _titled(values: JsonObject) -> JsonObject:
    return {_named(path): value for path, value in values.items()}


def _bounds(dimension: Dimension) -> str:
    """Format the bounds: Heavy threshold: 5,000 to 80,000, logarithmic."""
    name = _named(dimension.path)
    if dimension.choices:
        return f"{name}: {', '.join(map(str, dimension.choices))}"
    step = f", step {number(dimension.step)}" if dimension.step else ""
    scale = ", logarithmic" if dimension.log else ""
    return f"{name}: {number(dimension.low)} to {number(dimension.high)}{step}{scale}"


def _winner(winner: Winner, live: JsonObject) -> ShownWinner:
    return ShownWinner(
        winner["trial"],
        reasons=", ".join(REASONS[reason] for reason in winner["reasons"]),
        changes=[
            (_named(path), _text(path, live[path]), _text(path, value))
            for path, value in winner["values"].items()
            if live[path] != value
        ],
    )


def _column(winner: ShownWinner) -> ComparedArm:
    return ComparedArm(f"Trial {winner.trial}", note=winner.reasons)


def _rows(live: str, winners: Sequence[Winner]) -> list[ResultRow]:
    """Return a row for each goal, with the live version and the winners side by side."""
    by_goal = zip(*(winner["effect"] for winner in winners), strict=True)
    return [_row(live, [f"Trial {winner['trial']}" for winner in winners], rows) for rows in by_goal]


def _row(live: str, names: Sequence[str], rows: Sequence[WinnerEffect]) -> ResultRow:
    metric = BY_KEY[rows[0]["metric"]]
    tuned = (
        replace(cell(metric, name, row["tuned"]), n=whole(row["n"]), effect=effect(row))
        for name, row in zip(names, rows, strict=True)
    )
    return result_row(metric, (cell(metric, live, rows[0]["live"]), *tuned))


def picture(trials: Sequence[ShownTrial], live: GoalValues | None) -> Picture | None:
    """Draw TTFT p90 on x, TPOT p90 on y, and goodput as the size. Points without one of the times are left out."""
    named = [
        *((str(each.number), each.kind, each.goals) for each in trials),
        *([("live", "live", live)] if live else []),
    ]
    known = [
        (ttft, tpot, name, kind, goals)
        for name, kind, goals in sorted(named, key=lambda each: ("trial", "front", "winner", "live").index(each[1]))
        if (ttft := goals["ttft_p90_ms"]) is not None and (tpot := goals["tpot_p90_ms"]) is not None
    ]
    if not known:
        return None
    points = [
        Point(
            ttft,
            tpot,
            round(3 + 6 * math.sqrt(goals["goodput"]), 1),
            kind,
            name if kind in ("winner", "live") else "",
            _title(name, goals),
        )
        for ttft, tpot, name, kind, goals in known
    ]
    return scatter(points, AxisRange.of([point.y for point in points]), left_out=len(named) - len(known))


def _title(name: str, goals: GoalValues) -> str:
    who = "Live version" if name == "live" else f"Trial {name}"
    measured = goals["ttft_p90_ms"], goals["tpot_p90_ms"], goals["goodput"]
    values = (
        f"{metric.title} {shown_value(value, metric.unit)}"
        for metric, value in zip(BY_KEY.values(), measured, strict=True)
    )
    return f"{who}: {', '.join(values)}"
