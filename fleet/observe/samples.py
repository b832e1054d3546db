"""Rates of the last minute from the totals of an engine's metrics. Pure."""

from collections import deque
from dataclasses import dataclass, field

from router.contract.redis.sample import EngineMetrics

WINDOW_S = 60.0  # of rates


@dataclass(slots=True)
class TotalsWindow:
    """Totals over the last minute: (Unix s, their values)."""

    points: deque[tuple[float, tuple[float, ...]]] = field(default_factory=deque)

    def add(self, at: float, *totals: float | None) -> None:
        values = tuple(value for value in totals if value is not None)
        if len(values) < len(totals):
            return
        if self.points and values[0] < self.points[-1][1][0]:
            self.points.clear()  # the engine started again
        self.points.append((at, values))
        while len(self.points) > 2 and self.points[1][0] <= at - WINDOW_S:
            self.points.popleft()

    def grown(self) -> tuple[float, ...]:
        """(seconds, growth of each total); empty before the second reading."""
        if len(self.points) < 2:
            return ()
        (begin, first), (end, last) = self.points[0], self.points[-1]
        return (end - begin, *(new - old for old, new in zip(first, last, strict=True)))


@dataclass(slots=True)
class History:
    """The readings of one process of an instance."""

    cache: TotalsWindow = field(default_factory=TotalsWindow)  # tokens looked up, tokens found
    moved: TotalsWindow = field(default_factory=TotalsWindow)  # bytes of KV

    def add(self, at: float, metrics: EngineMetrics) -> None:
        self.cache.add(at, metrics.prefix_queries_total, metrics.prefix_hits_total)
        self.moved.add(at, metrics.transfers.get("bytes"))

    def hit_rate(self) -> float | None:
        """Share of the tokens looked up that were cached; None when no prompt was looked up."""
        _, asked, found = self.cache.grown() or (0.0, 0.0, 0.0)
        return min(1.0, max(0.0, found / asked)) if asked > 0 else None

    def transfer_bytes_per_s(self) -> float | None:
        seconds, size = self.moved.grown() or (0.0, 0.0)
        return size / seconds if seconds > 0 else None
