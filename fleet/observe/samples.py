"""The sample of an instance, from one scrape of its metrics (weir:inst:<id>, router/contract/wire.py). Pure."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from router.contract.engine_metrics import EngineMetrics

WINDOW_S = 60.0  # of rates


@dataclass(slots=True)
class SampleWindow:
    """Counter values over the last minute: (Unix seconds, values)."""

    points: deque[tuple[float, tuple[float, ...]]] = field(default_factory=deque)

    def add(self, at: float, *counters: float | None) -> None:
        values = tuple(value for value in counters if value is not None)
        if len(values) < len(counters):
            return
        if self.points and values[0] < self.points[-1][1][0]:
            self.points.clear()  # counters were reset
        self.points.append((at, values))
        while len(self.points) > 2 and self.points[1][0] <= at - WINDOW_S:
            self.points.popleft()

    def grown(self) -> tuple[float, ...]:
        """(seconds, growth of each counter); empty with fewer than two points."""
        if len(self.points) < 2:
            return ()
        (begin, first), (end, last) = self.points[0], self.points[-1]
        return (end - begin, *(new - old for old, new in zip(first, last, strict=True)))


@dataclass(slots=True)
class History:
    """Counter windows for the rates in a sample."""

    cache: SampleWindow = field(default_factory=SampleWindow)  # tokens queried, tokens hit
    moved: SampleWindow = field(default_factory=SampleWindow)  # bytes of KV

    def add(self, at: float, seen: EngineMetrics) -> None:
        self.cache.add(at, seen.prefix_queries, seen.prefix_hits)
        self.moved.add(at, seen.transfers.get("bytes"))

    def hit_rate(self) -> float | None:
        """Share of queried tokens that were cached; None without queries."""
        _, asked, found = self.cache.grown() or (0.0, 0.0, 0.0)
        return min(1.0, max(0.0, found / asked)) if asked > 0 else None

    def transfer_bytes_per_s(self) -> float | None:
        seconds, size = self.moved.grown() or (0.0, 0.0)
        return size / seconds if seconds > 0 else None


def sample(
    name: str,
    pool: str,
    epoch: int,
    at: float,
    seen: EngineMetrics,
    history: History,
    disk: tuple[int, int] | None = None,
) -> dict[str, Any]:
    return {
        "id": name,
        "pool": pool,
        "epoch": epoch,
        "at": at,
        "kv_usage": seen.kv_usage,
        "kv_blocks": seen.kv_blocks,
        "block_size": seen.block_size,
        "running": seen.running,
        "waiting": seen.waiting,
        "prefix_queries_total": seen.prefix_queries,
        "prefix_hits_total": seen.prefix_hits,
        "hit_rate": history.hit_rate(),
        "prompt_tokens_total": seen.prompt_tokens,
        "generation_tokens_total": seen.generation_tokens,
        "preemptions_total": seen.preemptions,
        "cached_by_source": seen.cached_by_source,
        "prompt_by_source": seen.prompt_by_source,
        "transfers": seen.transfers,
        "transfer_bytes_per_s": history.transfer_bytes_per_s(),
        "tiers": {tier: list(bytes_) for tier, bytes_ in seen.tiers.items()},
        "disk": list(disk) if disk else None,
    }
