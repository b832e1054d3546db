"""The TTFT from which a request counts as slow: the usual one for its length under live, and a margin. Pure."""

import math
from collections.abc import Iterable, Sequence

from controlplane.deliveries.judge.statistics.comparisons import LEAST_REQUESTS

SHARE = 0.9  # quantile of the residuals
LEAST_FACTOR = 1.5  # of the usual TTFT, at least: small deviations of a steady fleet do not count as slow

Limits = dict[str, tuple[float, float, float]]  # by class: a, b, τ; slow after exp(a + b·ln L + τ) ms


def limits(answered: Iterable[tuple[str, int, float]]) -> Limits:
    """From (class, prompt tokens, TTFT in ms) of live's last requests; a class with few of them has no limit."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for name, tokens, ms in answered:
        if tokens > 0 and ms > 0:
            rows.setdefault(name, []).append((math.log(tokens), math.log(ms)))
    return {name: _limit(found) for name, found in sorted(rows.items()) if len(found) >= LEAST_REQUESTS}


def _limit(rows: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    n = len(rows)
    mean_x, mean_y = sum(x for x, _ in rows) / n, sum(y for _, y in rows) / n
    spread = sum((x - mean_x) ** 2 for x, _ in rows)
    together = sum((x - mean_x) * (y - mean_y) for x, y in rows)
    b = max(0.0, together / spread) if spread > 1e-9 else 0.0  # a longer prompt never takes less
    a = mean_y - b * mean_x
    residuals = sorted(y - a - b * x for x, y in rows)
    return a, b, max(residuals[math.ceil(SHARE * n) - 1], math.log(LEAST_FACTOR))
