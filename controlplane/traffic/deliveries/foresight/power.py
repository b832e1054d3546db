"""The power of a switchback, by the number of its pairs and their spread. Pure.

The judge's own interval: with n pairs whose ln ratios have the mean m and the standard deviation s, the candidate is
fine when m + t·s/√n ≤ ln(1 + fine) and fails when m − t′·s/√n > ln(1 + worse), with Student's t of n − 1 degrees of
freedom at the plan's levels. Differences are assumed to be normal. Each probability is for one comparison, not for all
together.
"""

import math
from functools import lru_cache

from controlplane.traffic.deliveries.judge.statistics import student

ASSUMED_SPREAD = 0.1  # standard deviation of the ln ratios of pairs
POINTS = 400  # points of the integral
WIDEST = 5.0  # upper end of the integral: sample standard deviation ÷ true one


@lru_cache(maxsize=1024)
def passes(pairs: int, spread: float, fine: float, level: float) -> float:
    """The probability that an equal candidate is fine: noncentral t, integrated over the sample standard deviation."""
    freedom = pairs - 1
    t, limit = student.quantile(1 - level, freedom), math.log1p(fine) * math.sqrt(pairs) / spread
    width = WIDEST / POINTS
    middles = ((point + 0.5) * width for point in range(POINTS))
    return min(1.0, sum(width * _density(u, freedom) * _normal(limit - t * u) for u in middles))


def _density(u: float, freedom: int) -> float:
    """The density of √(χ² ÷ freedom)."""
    half, square = freedom / 2, freedom * u * u
    logarithm = (half - 1) * math.log(square) - square / 2 - half * math.log(2) - math.lgamma(half)
    return math.exp(logarithm) * 2 * freedom * u


def _normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def fails_from(pairs: int, spread: float, worse: float, level: float) -> float:
    """The ratio from which the candidate fails if the pairs show exactly this ratio and spread."""
    t = student.quantile(1 - level, pairs - 1)
    return math.exp(math.log1p(worse) + t * spread / math.sqrt(pairs))


@lru_cache(maxsize=1024)
def fills(expected: float, least: int) -> float:
    """The probability of `least` requests or more where `expected` are expected, by Poisson."""
    if expected > 10 * least:
        return 1.0
    fewer = (math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(least))
    return max(0.0, 1 - sum(fewer)) if expected else 0.0
