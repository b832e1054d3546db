"""A histogram for /metrics: fixed bounds, an addition per value."""

from bisect import bisect_left

# ms; from a quick token to a long prefill behind a queue
BOUNDS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000)


class Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0  # ms

    def observe(self, value_ms: float) -> None:
        self.counts[bisect_left(BOUNDS, value_ms)] += 1
        self.total += value_ms

    def cumulative_s(self) -> list[tuple[str, float]]:
        """(upper bound in s, values up to it), as Prometheus wants them."""
        names = [*(f"{bound / 1000:g}" for bound in BOUNDS), "+Inf"]
        seen, buckets = 0, []
        for name, count in zip(names, self.counts, strict=True):
            seen += count
            buckets.append((name, float(seen)))
        return buckets
