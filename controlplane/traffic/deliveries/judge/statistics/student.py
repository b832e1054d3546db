"""Quantiles of Student's t for whole degrees of freedom, without SciPy. Pure."""

import math
from functools import lru_cache

STEPS = 200  # bisections, more than a double has bits


def cdf(t: float, freedom: int) -> float:
    """Return Student's distribution function, by the finite series of Abramowitz and Stegun (26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    cos2 = math.cos(angle) ** 2
    odd = freedom % 2
    term, total = 1.0, 0.0
    if odd:
        term = math.cos(angle)
    for k in range(freedom // 2):
        total += term
        at = 2 * k + 1 + odd
        term *= cos2 * at / (at + 1)
    inside = (2 * angle + 2 * math.sin(angle) * total) / math.pi if odd else math.sin(angle) * total
    return 0.5 + math.copysign(inside, t) / 2


@lru_cache(maxsize=256)
def quantile(share: float, freedom: int) -> float:
    """Return the quantile of `share`, which is 0.5 or more."""
    low, high = 0.0, 1.0
    while cdf(high, freedom) < share:
        low, high = high, 2 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle, freedom) < share else (low, middle)
    return high
