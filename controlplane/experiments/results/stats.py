"""Statistics of an experiment, as pure functions: quantiles, ECDF, paired bootstrap, intervals of shares, verdicts.

Arms replay the same requests, so differences are taken between resamples of the same requests: what varies from
request to request (a long prompt is slow under every policy) then cancels out. SciPy has a paired
bootstrap too, but with NumPy it would add more than 100 MB to the installation.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import Literal

QUANTILES = (0.5, 0.9, 0.99)
LOW_N = 20  # fewer requests get a mark instead of a verdict
CONFIDENCE = 0.95
RESAMPLES = 500
RESAMPLES_LEAST = 100
WORK_LIMIT = 4_000_000  # drawn values per comparison: beyond it fewer resamples are drawn
ECDF_POINTS = 120

Verdict = Literal["better", "worse", "not distinguishable", "too few requests"]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, at least one; linear between neighbours (Hyndman and Fan's definition 7)."""
    return _between(ordered.__getitem__, len(ordered), share)


def _between(at: Callable[[int], float], n: int, share: float) -> float:
    """The quantile of n values; `at` gives the one of a rank, from 0."""
    place = (n - 1) * share
    below = int(place)
    low, high = at(below), at(min(below + 1, n - 1))
    return low + (high - low) * (place - below)


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """The QUANTILES of at least one value."""
    ordered = sorted(values)
    return tuple(quantile(ordered, share) for share in QUANTILES)


def ecdf(values: Sequence[float], points: int = ECDF_POINTS) -> tuple[list[float], list[float]]:
    """(values, shares of values at or below them), thinned to at most `points` with the ends kept."""
    ordered = sorted(values)
    n = len(ordered)
    count = min(n, points)
    ranks = [round(i * (n - 1) / max(count - 1, 1)) for i in range(count)]
    return [ordered[rank] for rank in ranks], [(rank + 1) / n for rank in ranks]


@dataclass(frozen=True, slots=True)
class Difference:
    """Arm minus baseline of one quantile, with the interval that holds it with CONFIDENCE."""

    difference: float
    low: float
    high: float
    n: int  # requests that both have
    verdict: Verdict


def resamples_of(n: int) -> int:
    return max(RESAMPLES_LEAST, min(RESAMPLES, WORK_LIMIT // max(n, 1)))


def bootstrap(columns: Mapping[str, Sequence[float]], seed: int = 1) -> dict[str, list[tuple[float, ...]]]:
    """For each column the quantiles of every resample. Columns are paired: row i is the same request in each."""
    n = len(next(iter(columns.values())))
    draw = random.Random(seed)  # noqa: S311 - resampling, not secrets
    rows = list(range(n))
    in_order = {name: _in_order(values) for name, values in columns.items()}
    drawn: dict[str, list[tuple[float, ...]]] = {name: [] for name in columns}
    for _ in range(resamples_of(n)):
        times = [0] * n
        for row in draw.choices(rows, k=n):
            times[row] += 1
        for name, (ordered, order) in in_order.items():
            drawn[name].append(_resampled(ordered, [times[row] for row in order]))
    return drawn


def _in_order(values: Sequence[float]) -> tuple[list[float], list[int]]:
    """(the values sorted, the rows that they are from)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    return [values[row] for row in order], order


def _resampled(ordered: Sequence[float], times: Sequence[int]) -> tuple[float, ...]:
    """The QUANTILES when each of these values was drawn so many times: sorting each resample takes twice as long."""
    ranks = list(accumulate(times))  # how many drawn values are at or below

    def at(rank: int) -> float:
        return ordered[bisect_right(ranks, rank)]

    return tuple(_between(at, len(ordered), share) for share in QUANTILES)


def differences(columns: Mapping[str, Sequence[float]], seed: int = 1) -> dict[tuple[str, str], tuple[Difference, ...]]:
    """(arm, baseline) → a Difference for each of QUANTILES; a lower value is better. No rows, no differences."""
    n = len(next(iter(columns.values()), ()))
    if n == 0:
        return {}
    drawn = bootstrap(columns, seed)
    exact = {name: quantiles(values) for name, values in columns.items()}
    return {
        (arm, base): tuple(
            _difference(
                exact[arm][q] - exact[base][q],
                sorted(a[q] - b[q] for a, b in zip(drawn[arm], drawn[base], strict=True)),
                n,
            )
            for q in range(len(QUANTILES))
        )
        for arm in columns
        for base in columns
        if arm != base
    }


def _difference(exact: float, resampled: Sequence[float], n: int) -> Difference:
    tail = (1 - CONFIDENCE) / 2
    low, high = quantile(resampled, tail), quantile(resampled, 1 - tail)
    return Difference(exact, low, high, n, verdict(low, high, n))


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The interval that holds the share hits/n with CONFIDENCE (Wilson 1927); (0, 1) when nothing was drawn."""
    if not n:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share, extra = hits / n, z * z / n
    middle = share + extra / 2
    half = z * math.sqrt(share * (1 - share) / n + extra / n / 4)
    return max(0.0, (middle - half) / (1 + extra)), min(1.0, (middle + half) / (1 + extra))


def verdict(low: float, high: float, n: int) -> Verdict:
    """What an interval of (arm − baseline) says when lower is better."""
    if n < LOW_N:
        return "too few requests"
    if high < 0:
        return "better"
    if low > 0:
        return "worse"
    return "not distinguishable"
