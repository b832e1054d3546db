"""Judges the expectations of an experiment, each and together: pass, fail or inconclusive. Pure. Limits on a value
without `confidence` apply to the value itself. All others apply to an interval: entirely within the limits passes,
entirely outside fails, anything else is inconclusive. Holm's method sets the levels over all of these intervals, so
that the probability of any wrong answer in the experiment is at most 1 − confidence.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.evidence.experiments.record import Expectation
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.statistics import stats
from controlplane.evidence.experiments.results.statistics.pairs import Estimator
from controlplane.evidence.experiments.results.statistics.stats import ResampledEstimate
from controlplane.evidence.experiments.results.summarize import value_of
from controlplane.evidence.experiments.results.types import ArmResults, ExpectationRow, ExpectationVerdict, Overall

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Claim:
    """An expectation, applied to one arm."""

    arm: str
    request_class: str
    metric: str
    relative_to: str  # baseline; empty for a limit on the value itself
    low: float
    high: float
    confidence: float | None  # None for the value without an interval


def claims_of(expect: Sequence[Expectation], arms: Sequence[str]) -> list[Claim]:
    """Return a claim for each arm that an expectation covers, except the baseline itself."""
    found = []
    for item in expect:
        relative_to = item.relative_to
        low, high = (item.min_ratio, item.max_ratio) if relative_to else (item.min, item.max)
        confidence = item.confidence or (CONFIDENCE if relative_to else None)
        for arm in [item.arm] if item.arm else [name for name in arms if name != relative_to]:
            limits = (-math.inf if low is None else low, math.inf if high is None else high)
            found.append(Claim(arm, item.request_class, item.metric, relative_to, *limits, confidence))
    return found


def judge(
    expect: Sequence[Expectation],
    arms: Sequence[ArmResults],
    estimator: Estimator,
    beat: Callable[[], None],
) -> list[ExpectationRow]:
    """Return a row for each claim, as in the API. `arms` has the arms' results."""
    by_name = {arm["name"]: arm for arm in arms}
    claims = claims_of(expect, list(by_name))
    estimates = []
    for claim in claims:
        beat()
        estimates.append(_estimate(claim, estimator))
    levels = _levels(claims, estimates)
    return [
        _row(claim, by_name, estimator, estimate, level)
        for claim, estimate, level in zip(claims, estimates, levels, strict=True)
    ]


def overall(answers: Sequence[str]) -> Overall:
    """Return the verdict over all: a failure outweighs an inconclusive one."""
    return next((answer for answer in ("fail", "inconclusive", "pass") if answer in answers), "none")


def _estimate(claim: Claim, estimator: Estimator) -> ResampledEstimate | None:
    if claim.confidence is None:
        return None
    if claim.relative_to:
        return estimator.ratio(claim.arm, claim.relative_to, claim.request_class, claim.metric)
    return estimator.value(claim.arm, claim.request_class, claim.metric)


def _levels(claims: Sequence[Claim], estimates: Sequence[ResampledEstimate | None]) -> list[float]:
    """Return the level of each interval; a claim without an estimate still counts as a test."""
    tested = [i for i, claim in enumerate(claims) if claim.confidence is not None]
    p_values = [1.0 if (each := estimates[i]) is None else _p_value(claims[i], each) for i in tested]
    found = stats.holm(p_values, [1 - (claims[i].confidence or CONFIDENCE) for i in tested])
    levels = [1 - CONFIDENCE] * len(claims)
    for i, level in zip(tested, found, strict=True):
        levels[i] = level
    return levels


def _p_value(claim: Claim, estimate: ResampledEstimate) -> float:
    """Return the p-value of the conclusion that the estimate suggests: within both limits, or beyond the violated
    limit.
    """
    finite = [limit for limit in (claim.low, claim.high) if math.isfinite(limit)]
    if claim.low <= estimate.exact <= claim.high:
        return max((estimate.p_value(limit) for limit in finite), default=1.0)
    return min((estimate.p_value(limit) for limit in finite), default=1.0)


def _row(
    claim: Claim,
    arms: Mapping[str, ArmResults],
    estimator: Estimator,
    estimate: ResampledEstimate | None,
    level: float,
) -> ExpectationRow:
    value = _value(claim.arm, claim, arms, estimator)
    low, high = estimate.interval(level) if estimate is not None else (None, None)
    found = estimate.exact if claim.relative_to and estimate is not None else value
    answer, needed = _answer(claim, value, estimate, level)
    return {
        "arm": claim.arm,
        "class": claim.request_class,
        "metric": claim.metric,
        "relative_to": claim.relative_to,
        "limits": _limits(claim),
        "min_ratio": _known(claim.low) if claim.relative_to else None,
        "max_ratio": _known(claim.high) if claim.relative_to else None,
        "value": _known(value),
        "baseline_value": _known(_value(claim.relative_to, claim, arms, estimator)) if claim.relative_to else None,
        "ratio": _known(found) if claim.relative_to else None,
        "low": _known(low),
        "high": _known(high),
        "confidence": claim.confidence,
        "level": None if claim.confidence is None else round(1 - level, 6),
        "n": None if estimate is None else estimate.n,
        "needed_n": needed,
        "verdict": answer,
        "passed": answer == "pass",
    }


def _value(name: str, claim: Claim, arms: Mapping[str, ArmResults], estimator: Estimator) -> float | None:
    """Return the value; infinite for a latency quantile among requests without an answer."""
    if (quantile := METRICS[claim.metric].quantile) is not None:
        return estimator.quantile(name, claim.request_class, *quantile)
    return value_of(arms[name], claim.request_class, claim.metric)


def _answer(
    claim: Claim, value: float | None, estimate: ResampledEstimate | None, level: float
) -> tuple[ExpectationVerdict, int | None]:
    """Return (verdict, number of requests that would decide it). An unknown value fails a limit on the value."""
    if claim.confidence is None:
        return ("pass" if value is not None and claim.low <= value <= claim.high else "fail"), None
    if estimate is None or estimate.is_few:
        return "inconclusive", stats.LOW_N
    low, high = estimate.interval(level)
    if claim.low <= low and high <= claim.high:
        return "pass", None
    if high < claim.low or low > claim.high:
        return "fail", None
    needed = [estimate.needed_n(limit, level) for limit in (claim.low, claim.high) if low <= limit <= high]
    return "inconclusive", None if None in needed else max((n for n in needed if n is not None), default=None)


def _limits(claim: Claim) -> str:
    bounds = (("at least", claim.low), ("at most", claim.high))
    words = " and ".join(f"{word} {bound:g}" for word, bound in bounds if math.isfinite(bound))
    return f"{words} × {claim.relative_to}" if claim.relative_to else words


def _known(value: float | None) -> float | None:
    """Return None in place of infinity, which does not exist in JSON."""
    return None if value is None or not math.isfinite(value) else round(value, 6)
