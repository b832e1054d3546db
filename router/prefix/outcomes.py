"""Predicted against actual cached tokens of all requests since the start, for /metrics, per index in force."""

from bisect import bisect_left

BOUNDS = (0, 16, 64, 256, 1_024, 4_096, 16_384, 65_536)  # tokens


class Outcomes:
    __slots__ = ("actual", "counts", "error", "predicted")

    def __init__(self) -> None:
        self.predicted = 0  # tokens
        self.actual = 0
        self.error = 0  # sum of |predicted − actual|
        self.counts = [0] * (len(BOUNDS) + 1)  # requests by |predicted − actual|

    def add(self, predicted: int, actual: int) -> None:
        wrong = abs(predicted - actual)
        self.predicted += predicted
        self.actual += actual
        self.error += wrong
        self.counts[bisect_left(BOUNDS, wrong)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus buckets: (upper bound in tokens, requests up to it)."""
        seen, buckets = 0, []
        for name, count in zip([*map(str, BOUNDS), "+Inf"], self.counts, strict=True):
            seen += count
            buckets.append((name, float(seen)))
        return buckets
