"""A Prometheus histogram without labels of its own, cheap to fill: most observations come as (value, how often)."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class SimHistogram:
    def __init__(self, buckets: Sequence[float]) -> None:
        self._bounds = list(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, name: str, labels: str) -> list[str]:
        totals = list(accumulate(self._counts))
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        lines = [f'{name}_bucket{{{labels},le="{bound}"}} {total}' for bound, total in zip(bounds, totals, strict=True)]
        return [*lines, f"{name}_sum{{{labels}}} {self._sum!r}", f"{name}_count{{{labels}}} {totals[-1]}"]
