"""A Prometheus histogram with fixed bounds: one addition per value."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0  # sum of the values

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[int]:
        """How many values are at most each bound, and of all values."""
        return list(accumulate(self.counts))
