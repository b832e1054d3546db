"""Sums over a pool, and over all pools: requests, tokens, and what output tokens cost. Pure."""

from collections.abc import Mapping, Sequence

from controlplane.live.dashboard.frame.latency import ALL_POOLS
from controlplane.live.dashboard.frame.types import Classes, Columns, PoolTotals
from fleet.systems.prices import per_million


def of_pools(pools: Sequence[str], instances: Columns, classes: Mapping[str, Classes]) -> dict[str, PoolTotals]:
    """By pool and, of all, under ALL_POOLS; None where no instance or router reported a value."""
    everything = {ALL_POOLS: pools, **{pool: [pool] for pool in pools}}
    return {name: _totals(shown, instances, classes) for name, shown in everything.items()}


def _totals(pools: Sequence[str], instances: Columns, classes: Mapping[str, Classes]) -> PoolTotals:
    places = [i for i, pool in enumerate(instances["pool"]) if pool in pools]

    def column(name: str) -> list[float | None]:
        return [instances[name][i] for i in places]

    per_gpu, per_million_tokens = economics(column("tokens_s"), column("gpus"), column("dollars_h"))
    windows = [window for pool in pools for window in classes[pool].values() if window is not None]
    return {
        "rate": _sum([window["rate"] for window in windows]),
        "running": _sum(column("running")),
        "waiting": _sum(column("waiting")),
        "tokens_s": _sum(column("tokens_s")),
        "tokens_gpu_s": per_gpu,
        "per_million": per_million_tokens,
    }


def economics(
    tokens_s: Sequence[float | None], gpus: Sequence[float | None], dollars_h: Sequence[float | None]
) -> tuple[float | None, float | None]:
    """Output tokens/s of a GPU, and dollars per million output tokens; None without tokens or GPUs."""
    tokens, count, dollars = (sum(value or 0 for value in column) for column in (tokens_s, gpus, dollars_h))
    return (tokens / count, per_million(dollars, tokens)) if count and tokens else (None, None)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 1) if known else None
