"""The three goals of a tuning: TTFT p90, TPOT p90 and goodput; its front and winners. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from controlplane.evidence.experiments.results.statistics import stats
from controlplane.evidence.experiments.results.statistics.comparison import bounds
from controlplane.evidence.experiments.results.statistics.stats import Difference, ResampledEstimate
from controlplane.evidence.tuning.types import GoalMetric, GoalValues, WinnerEffect
from controlplane.evidence.twin.simulation.types import Simulated

P90 = stats.QUANTILES.index(0.9)
OBJECTIVES = ("ttft", "tpot", "goodput")  # in the order of Goals.ordered
BALANCED = "balanced"


@dataclass(frozen=True, slots=True)
class GoodputLimits:
    """An answer within both limits counts as goodput."""

    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class Goals:
    n: int  # number of requests
    answered: int
    ttft_p90_ms: float | None  # None if more than a tenth had no answer, which counts as infinitely slow
    tpot_p90_ms: float | None  # answers with two tokens or more; None if there was none
    goodput: float  # share of all requests that were answered within the limits

    @property
    def ordered(self) -> tuple[float, float, float]:
        return _or_infinite(self.ttft_p90_ms), _or_infinite(self.tpot_p90_ms), self.goodput

    def as_dict(self) -> GoalValues:
        return cast(GoalValues, asdict(self))


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def goals_of(requests: Sequence[Simulated], limits: GoodputLimits) -> Goals:
    ttft, tpot = ([ms for request in requests if (ms := of(request)) is not None] for of in (ttft_ms, tpot_ms))
    return Goals(
        n=len(requests),
        answered=sum(request.outcome == "ok" for request in requests),
        ttft_p90_ms=_p90(ttft),
        tpot_p90_ms=_p90(tpot),
        goodput=round(sum(is_good(request, limits) for request in requests) / len(requests), 6),
    )


def limits_of(live: Sequence[Simulated], ttft_limit_ms: float | None, tpot_limit_ms: float | None) -> GoodputLimits:
    """Return the requested limits, or else the live version's p90; infinite if it has none."""
    ttft_p90, tpot_p90, _ = goals_of(live, GoodputLimits(math.inf, math.inf)).ordered
    return GoodputLimits(ttft_limit_ms or ttft_p90, tpot_limit_ms or tpot_p90)


def ttft_ms(request: Simulated) -> float:
    """Return the TTFT; infinite without an answer."""
    return math.inf if request.outcome != "ok" or request.ttft_s is None else request.ttft_s * 1000


def tpot_ms(request: Simulated) -> float | None:
    return request.tpot_s * 1000 if request.outcome == "ok" and request.tpot_s is not None else None


def is_good(request: Simulated, limits: GoodputLimits) -> bool:
    tpot = tpot_ms(request)
    return request.outcome == "ok" and ttft_ms(request) <= limits.ttft_ms and (tpot is None or tpot <= limits.tpot_ms)


def _p90(values: Sequence[float]) -> float | None:
    if not values:
        return None
    found = stats.quantile(sorted(values), 0.9)
    return round(found, 3) if math.isfinite(found) else None


def front(points: Mapping[int, Goals], objectives: Sequence[str] = OBJECTIVES) -> list[int]:
    """Return the Pareto front: no other point is at least as good in every objective and better in one."""
    costs = {number: _cost(goals, objectives) for number, goals in points.items()}
    return [number for number, cost in costs.items() if not any(_beats(other, cost) for other in costs.values())]


def _cost(goals: Goals, objectives: Sequence[str]) -> tuple[float, ...]:
    ttft, tpot, goodput = goals.ordered
    costs = {"ttft": ttft, "tpot": tpot, "goodput": -goodput}
    return tuple(costs[name] for name in objectives)


def _beats(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a != b and all(ours <= theirs for ours, theirs in zip(a, b, strict=True))


def winners(points: Mapping[int, Goals], objectives: Sequence[str] = OBJECTIVES) -> dict[int, list[str]]:
    """Return the points of the front to be checked, each with the objective in which it is best, or the balance of
    all."""
    costs = {number: _cost(points[number], objectives) for number in front(points, objectives)}
    found: dict[int, list[str]] = {}
    if not costs:
        return found
    for i, reason in enumerate(objectives):
        found.setdefault(min(costs, key=lambda number: (costs[number][i], costs[number])), []).append(reason)
    if len(objectives) == 1:
        return found
    best, worst = ([by(column) for column in zip(*costs.values(), strict=True)] for by in (min, max))

    def distance(number: int) -> float:
        return sum(
            ((cost - low) / (high - low)) ** 2 if math.isfinite(cost) and high > low else 4.0 * math.isinf(cost)
            for cost, low, high in zip(costs[number], best, worst, strict=True)
        )

    found.setdefault(min(costs, key=distance), []).append(BALANCED)
    return found


def effects(
    live: Sequence[Simulated], tuned: Mapping[int, Sequence[Simulated]], limits: GoodputLimits
) -> dict[int, list[WinnerEffect]]:
    """Return the effects of each winner compared with the live version on the same requests; the intervals hold jointly
    for all winners."""
    outcomes = {"live": live, **{str(number): requests for number, requests in tuned.items()}}
    rows: dict[int, list[WinnerEffect]] = {number: [] for number in tuned}
    latencies: tuple[tuple[GoalMetric, Any], ...] = (("ttft_p90_ms", ttft_ms), ("tpot_p90_ms", tpot_ms))
    for metric, of in latencies:
        columns, sessions = _columns(outcomes, of)
        found = stats.differences(columns, sessions=sessions)
        for number in tuned:
            pair = found.get((str(number), "live"))
            before, after = (_p90(columns[name]) for name in ("live", str(number)))
            rows[number].append(_row(metric, before, after, pair[P90] if pair else None))
    goods = {name: [float(is_good(request, limits)) for request in requests] for name, requests in outcomes.items()}
    means = {name: round(sum(values) / len(values), 6) for name, values in goods.items()}
    every = [request.session_key for request in live]
    judged = stats.judged([_share(goods[str(number)], goods["live"], every) for number in tuned], lower_is_better=False)
    for number, difference in zip(tuned, judged, strict=True):
        rows[number].append(_row("goodput", means["live"], means[str(number)], difference))
    return rows


def _columns(
    outcomes: Mapping[str, Sequence[Simulated]], of: Any
) -> tuple[dict[str, list[float]], list[tuple[int, str | int]]]:
    """Return (columns, session of each row). A row is a request; those without a value in a column are left out."""
    rows = list(zip(*([of(request) for request in requests] for requests in outcomes.values()), strict=True))
    whole = [i for i, row in enumerate(rows) if None not in row]
    columns = {name: [rows[i][column] for i in whole] for column, name in enumerate(outcomes)}
    return columns, [outcomes["live"][i].session_key for i in whole]


def _share(
    ours: Sequence[float], theirs: Sequence[float], sessions: Sequence[tuple[int, str | int]]
) -> ResampledEstimate:
    gains, n = [a - b for a, b in zip(ours, theirs, strict=True)], len(ours)
    drawn = (
        sum(gain * times for gain, times in zip(gains, each, strict=True)) / sum(each)
        for each in stats.draws(n, sessions=sessions)
    )
    return ResampledEstimate.of(sum(gains) / n, drawn, n, len(set(sessions)))


def _row(metric: GoalMetric, live: float | None, tuned: float | None, found: Difference | None) -> WinnerEffect:
    return {
        "metric": metric,
        "live": live,
        "tuned": tuned,
        **bounds(found, 6),
        "n": found.n if found else 0,
    }
