"""Compares the recent traffic with the needs of each step of a plan, and writes a sentence if there is too little.
Pure. The needs are the judge's minimums: 30 requests and 8 effective cells in an arm, 30 requests in each block.
Reaching them does not make a class fine, but without them no step passes.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from controlplane.traffic.deliveries.foresight.recent import LEAST_SESSIONS, RecentTraffic
from controlplane.traffic.deliveries.judge.statistics import student
from controlplane.traffic.deliveries.judge.statistics.comparisons import LEAST_REQUESTS
from controlplane.traffic.deliveries.judge.verdicts import OCCURS_FROM, UNITS, levels_of
from controlplane.traffic.deliveries.plan.reader import NUMBERS
from controlplane.traffic.deliveries.plan.types import (
    CLASSES,
    NEEDED,
    OCCURS,
    RARE,
    Canary,
    ComparisonGuard,
    Plan,
    Switchback,
)
from controlplane.traffic.deliveries.timing.durations import words
from fleet.counted import percent, times

ENOUGH = 0.9  # probability
LEAST_SPREAD = 0.01  # pairs that have hardly differed so far may differ more next time
LONGEST_S = NUMBERS["hold.no_data_s"].range[1]  # the longest wait for data that a plan allows for a canary
Spreads = Mapping[tuple[str, str], float]  # spreads in earlier switchbacks, by metric and class


# The power of a switchback, by the number of its pairs and their spread. The judge's own interval: with n pairs whose
# ln ratios have the mean m and the standard deviation s, the candidate is fine when m + t·s/√n ≤ ln(1 + fine) and
# fails when m − t′·s/√n > ln(1 + worse), with Student's t of n − 1 degrees of freedom at the plan's levels.
# Differences are assumed to be normal. Each probability is for one comparison, not for all together.
ASSUMED_SPREAD = 0.1  # standard deviation of the ln ratios of pairs
POINTS = 400  # points of the integral
WIDEST = 5.0  # upper end of the integral: sample standard deviation ÷ true one


@lru_cache(maxsize=1024)
def passes(pairs: int, spread: float, fine: float, level: float) -> float:
    """Return the probability that an equal candidate is fine: noncentral t, integrated over the sample standard
    deviation."""
    freedom = pairs - 1
    t, limit = student.quantile(1 - level, freedom), math.log1p(fine) * math.sqrt(pairs) / spread
    width = WIDEST / POINTS
    middles = ((point + 0.5) * width for point in range(POINTS))
    return min(1.0, sum(width * _density(u, freedom) * _normal(limit - t * u) for u in middles))


def _density(u: float, freedom: int) -> float:
    """Return the density of √(χ² ÷ freedom)."""
    half, square = freedom / 2, freedom * u * u
    logarithm = (half - 1) * math.log(square) - square / 2 - half * math.log(2) - math.lgamma(half)
    return math.exp(logarithm) * 2 * freedom * u


def _normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def fails_from(pairs: int, spread: float, worse: float, level: float) -> float:
    """Return the ratio from which the candidate fails if the pairs show exactly this ratio and spread."""
    t = student.quantile(1 - level, pairs - 1)
    return math.exp(math.log1p(worse) + t * spread / math.sqrt(pairs))


@lru_cache(maxsize=1024)
def fills(expected: float, least: int) -> float:
    """Return the probability of at least `least` requests when `expected` are expected, by Poisson."""
    if expected > 10 * least:
        return 1.0
    fewer = (math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(least))
    return max(0.0, 1 - sum(fewer)) if expected else 0.0


class Outlook(IntEnum):
    """The outlook for a class in a step; higher values are better."""

    NEVER = 0  # the step pauses before it judges the class
    LEFT = 1  # the step passes without the class
    LATE = 2  # the step waits for the class
    IN_TIME = 3


@dataclass(frozen=True, slots=True)
class Foreseen:
    step: int  # from 1
    pool: str
    request_class: str  # empty for all classes
    text: str


def foreseen(plan: Plan, pools: Mapping[str, RecentTraffic | None], spreads: Spreads) -> list[Foreseen]:
    """Return the outlooks in the order of the steps, without pools that have no traffic."""
    found: list[Foreseen] = []
    for at, step in enumerate(plan.steps):
        if isinstance(step, Switchback):
            found += [Foreseen(at + 1, "", "", f"step {at + 1} · {text}") for text in _powers(plan, step, spreads)]
        for pool, traffic in pools.items():
            if traffic is not None and isinstance(step, Canary | Switchback):
                where = [f"step {at + 1}", *([pool] if len(pools) > 1 else [])]
                for name, text in _of_step(plan, at, traffic):
                    found.append(Foreseen(at + 1, pool, name, f"{' · '.join([*where, name])}: {text}"))
    return found


def _of_step(plan: Plan, at: int, traffic: RecentTraffic) -> Iterator[tuple[str, str]]:
    """Yield (class, sentence) of a step."""
    step, classes = plan.steps[at], needed_classes(plan)
    is_first = not any(isinstance(each, Canary | Switchback) for each in plan.steps[:at])  # computed once for all steps
    judged = [name for name in classes if traffic.shares.get(name, 0.0) >= OCCURS]
    for name in classes:
        if name not in judged:
            text = _not_judged(traffic, name, is_left=bool(judged)) if is_first else ""
        elif isinstance(step, Switchback):
            text = _of_blocks(plan, step, traffic, name)
        else:
            text = _of_canary(plan, at, step, traffic, name) if isinstance(step, Canary) else ""
        if text:
            yield name, text


def needed_classes(plan: Plan) -> dict[str, list[str]]:
    """Return the metrics that must be fine, by class."""
    guards = [each for each in plan.guards if isinstance(each, ComparisonGuard) and each.metric in NEEDED]
    found = {name: [str(guard.metric) for guard in guards if name in guard.classes] for name in CLASSES}
    return {name: metrics for name, metrics in found.items() if metrics}


def _not_judged(traffic: RecentTraffic, name: str, *, is_left: bool) -> str:
    share = percent(traffic.shares.get(name, 0.0), ".2g")
    rest = "" if is_left else "; no other class is either, so the step pauses"
    return f"{share} of the requests, and below {percent(OCCURS)} it is not judged{rest}"


def _is_rare(plan: Plan, traffic: RecentTraffic, name: str) -> bool:
    """Return whether a step may pass without the class, because another needed class has enough requests to keep it
    waiting.
    """
    others = any(traffic.shares.get(each, 0.0) >= RARE for each in needed_classes(plan))
    return others and traffic.shares.get(name, 0.0) < RARE


# Canaries


def canary_outlook(plan: Plan, at: int, step: Canary, traffic: RecentTraffic, name: str) -> Outlook:
    seconds, limit = max(_times(plan, step, traffic, name)), _limit_s(plan, step)
    if seconds <= step.for_s:
        return Outlook.IN_TIME
    if _later(plan, at) and _is_rare(plan, traffic, name) and traffic.rate * limit >= OCCURS_FROM:
        return Outlook.LEFT
    return Outlook.LATE if seconds <= limit else Outlook.NEVER


def _limit_s(plan: Plan, step: Canary) -> int:
    return min(step.max_s, plan.hold.no_data_s)


def _limits(plan: Plan, step: Canary, seconds: float) -> str:
    """Name the limit that ends the step before that time, in the words of the form and the plan."""
    limits = {"“Pause after”, max_s": step.max_s, "hold.no_data_s of the plan as JSON": plan.hold.no_data_s}
    return "; ".join(name for name, limit in limits.items() if limit < seconds)


def _later(plan: Plan, at: int) -> int:
    """Return the number of the next step that compares, from 1; 0 if there is none."""
    later = (n for n, each in enumerate(plan.steps[at + 1 :], at + 2) if isinstance(each, Canary | Switchback))
    return next(later, 0)


def _times(plan: Plan, step: Canary, traffic: RecentTraffic, name: str) -> tuple[float, float]:
    """Return the seconds until the candidate's arm, which is the smaller one, has enough requests and sessions."""
    figures = [traffic.of(metric, name) for metric in needed_classes(plan)[name]]
    requests, sessions = (min(getattr(each, key) for each in figures) for key in ("requests", "sessions"))
    return _time(LEAST_REQUESTS, requests * step.share), _time(LEAST_SESSIONS, sessions * step.share)


def _time(count: float, rate: float) -> float:
    return count / rate if rate else math.inf


def _of_canary(plan: Plan, at: int, step: Canary, traffic: RecentTraffic, name: str) -> str:
    outlook, seconds = canary_outlook(plan, at, step, traffic, name), max(_times(plan, step, traffic, name))
    if outlook is Outlook.IN_TIME:
        return ""
    said = f"{_expected(plan, step, traffic, name)} in {words(step.for_s)}"
    if outlook is Outlook.LATE:
        return f"{said}; the step waits for it, about {about(seconds)}"
    if outlook is Outlook.LEFT:
        longer = f", or give the step {about(seconds)}" if seconds <= LONGEST_S else ""
        return f"{said}; it is left to step {_later(plan, at)}{longer}"
    longer = (
        f"give it {about(seconds)} ({_limits(plan, step, seconds)})"
        if seconds <= LONGEST_S
        else "no step is long enough"
    )
    return f"{said}; the step pauses after {words(_limit_s(plan, step))}: {longer}, or take {name} out of its guards"


def _expected(plan: Plan, step: Canary, traffic: RecentTraffic, name: str) -> str:
    """Return the expected time until there are enough requests and sessions, whichever takes longer."""
    requests_s, sessions_s = _times(plan, step, traffic, name)
    if requests_s >= sessions_s:
        return f"{_some(LEAST_REQUESTS * step.for_s / requests_s)} of the {LEAST_REQUESTS} requests needed"
    return f"{_some(LEAST_SESSIONS * step.for_s / sessions_s)} of the {LEAST_SESSIONS} sessions needed"


def _some(count: float) -> str:
    return f"about {count:,.0f}" if count >= 0.5 else "hardly one"


# Switchbacks


def blocks_outlook(plan: Plan, step: Switchback, traffic: RecentTraffic, name: str) -> Outlook:
    """Return IN_TIME if every block has enough requests; otherwise the class is left out at the end, or the step
    pauses."""
    measured_s, blocks = step.block_s - step.washout_s, 2 * step.pairs
    if fills(_rate(plan, traffic, name) * measured_s, LEAST_REQUESTS) ** blocks >= ENOUGH:
        return Outlook.IN_TIME
    seen = traffic.rate * measured_s * blocks >= OCCURS_FROM
    return Outlook.LEFT if seen and _is_rare(plan, traffic, name) else Outlook.NEVER


def _rate(plan: Plan, traffic: RecentTraffic, name: str) -> float:
    return min(traffic.of(metric, name).requests for metric in needed_classes(plan)[name])


def _of_blocks(plan: Plan, step: Switchback, traffic: RecentTraffic, name: str) -> str:
    outlook, rate = blocks_outlook(plan, step, traffic, name), _rate(plan, traffic, name)
    if outlook is Outlook.IN_TIME:
        return ""
    expected = rate * (step.block_s - step.washout_s)
    said = f"{_some(expected)} of the {LEAST_REQUESTS} requests that each of the {2 * step.pairs} blocks needs"
    then = "it is not judged" if outlook is Outlook.LEFT else "the step pauses at its end"
    seconds = _time(_enough_for(2 * step.pairs), rate) + step.washout_s
    if seconds <= NUMBERS["switchback.block_s"].range[1]:
        return f"{said}; {then}: blocks of {about(seconds)} would do"
    return f"{said}; {then}: no block is long enough, a canary may judge it"


def _enough_for(blocks: int) -> int:
    """Return the expected requests per block with which all blocks probably have enough."""
    found = LEAST_REQUESTS
    while fills(found, LEAST_REQUESTS) ** blocks < ENOUGH:
        found += 1
    return found


def _powers(plan: Plan, step: Switchback, spreads: Spreads) -> list[str]:
    """Return one sentence for all metrics with the same limits and spread."""
    found: dict[str, list[str]] = {}
    for guard in plan.guards:
        if isinstance(guard, ComparisonGuard) and guard.fine is not None:
            known = [spreads[guard.metric, name] for name in guard.classes if (guard.metric, name) in spreads]
            text = _power(plan, step, guard.worse, guard.fine, max(known, default=None))
            found.setdefault(text, []).append(UNITS[guard.metric])
    return [f"switchback: {' and '.join(metrics)}, {text}" for text, metrics in found.items()]


def _power(plan: Plan, step: Switchback, worse: float, fine: float, known: float | None) -> str:
    levels, spread = levels_of(plan), ASSUMED_SPREAD if known is None else max(known, LEAST_SPREAD)

    def chance(pairs: int) -> float:
        return passes(pairs, spread, fine, levels.fine)

    def harm(pairs: int) -> str:
        return times(fails_from(pairs, spread, worse, levels.fail))

    passing = f"{percent(chance(step.pairs))} of equal candidates pass each comparison"
    more = range(step.pairs + 1, int(NUMBERS["switchback.pairs"].range[1]) + 1) if chance(step.pairs) < ENOUGH else ()
    better = next((n for n in more if chance(n) >= ENOUGH), 0)
    rest = f"; with {better} pairs {percent(chance(better))} and {harm(better)}" if better else ""
    where = "assumed" if known is None else "as in the latest switchback"
    said = f"{step.pairs} pairs: {passing}, harm fails from {harm(step.pairs)} on"
    return f"{said}{rest} (pairs that differ by {percent(spread)}, {where})"


def about(seconds: float) -> str:
    """Format a duration, rounded up."""
    unit = next((unit for least, unit in ((86_400, 3600), (7200, 600), (120, 60)) if seconds > least), 1)
    return words(math.ceil(seconds / unit) * unit)
