"""From one look's figures to the sample that everybody reads (weir:inst:<id>, router/wire.py). Pure."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from router.figures import Figures

WINDOW_S = 60.0  # of the hit rate


@dataclass(slots=True)
class History:
    """The prefix cache's counters over the last minute: (Unix seconds, queries, hits)."""

    points: deque[tuple[float, float, float]] = field(default_factory=deque)

    def add(self, at: float, queries: float | None, hits: float | None) -> None:
        if queries is None or hits is None:
            return
        if self.points and queries < self.points[-1][1]:
            self.points.clear()  # counters begin at nought again
        self.points.append((at, queries, hits))
        while len(self.points) > 2 and self.points[1][0] <= at - WINDOW_S:
            self.points.popleft()

    def hit_rate(self) -> float | None:
        """Share of the asked tokens that were cached; None when nothing was asked."""
        if len(self.points) < 2:
            return None
        (_, first_queries, first_hits), (_, queries, hits) = self.points[0], self.points[-1]
        asked = queries - first_queries
        return min(1.0, max(0.0, (hits - first_hits) / asked)) if asked > 0 else None


def sample(
    name: str,
    pool: str,
    epoch: int,
    at: float,
    seen: Figures,
    hit_rate: float | None,
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
        "hit_rate": hit_rate,
        "prompt_tokens_total": seen.prompt_tokens,
        "generation_tokens_total": seen.generation_tokens,
        "preemptions_total": seen.preemptions,
        "cached_by_source": seen.cached_by_source,
        "prompt_by_source": seen.prompt_by_source,
        "transfers": seen.transfers,
        "tiers": {tier: list(bytes_) for tier, bytes_ in seen.tiers.items()},
        "disk": list(disk) if disk else None,
    }
