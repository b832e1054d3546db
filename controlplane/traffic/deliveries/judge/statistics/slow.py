"""The TTFT above which a request counts as slow: the live version's usual TTFT at its length, plus a margin. Pure."""

import math
from collections.abc import Iterable, Sequence

from controlplane.traffic.deliveries.judge.statistics.comparisons import LEAST_REQUESTS

SHARE = 0.9  # quantile of the residuals
LEAST_FACTOR = 1.5  # smallest factor over the usual TTFT, because small deviations in a steady fleet are not slow

Limits = dict[str, tuple[float, float, float]]  # by class: (a, b, τ); slow above exp(a + b·ln L + τ) ms


def limits(answered: Iterable[tuple[str, int, float]]) -> Limits:
    """Fit the limits from `answered`: (class, prompt tokens, TTFT in ms) of the live version's last requests. A class
    with few requests has no limit."""
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
    b = max(0.0, together / spread) if spread > 1e-9 else 0.0  # the limit never falls with the length of the prompt
    a = mean_y - b * mean_x
    residuals = sorted(y - a - b * x for x, y in rows)
    return a, b, max(residuals[math.ceil(SHARE * n) - 1], math.log(LEAST_FACTOR))
