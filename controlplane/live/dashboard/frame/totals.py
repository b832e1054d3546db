"""Sums over a pool, and over all pools: requests, tokens, and the cost of output tokens. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp

from controlplane.live.dashboard.frame.types import ALL_POOLS, Classes, Columns, PoolTotals
from fleet.systems.prices import per_million
from router.contract.redis.staleness import is_recent

AVERAGE_S = 30.0  # time constant of the figures per GPU and per token; single seconds vary by half


# Reasons of rejected requests as text for the Live page
WORDS = {
    "": "by the engine",
    "saturated": "queue full",
    "queue_timeout": "queue timeout",
    "deadline_unmeetable": "deadline cannot be met",
    "deadline_exceeded": "deadline passed",
    "no_instance_ready": "no instance ready",
    "waking": "not awake in time",
    "displaced": "displaced in a full queue",
    "over_ttft_limit": "over the TTFT limit",
}


def words(windows: Iterable[Mapping[str, int]]) -> str:
    """Describe the counts by code, summed over routers, such as "3 queue full, 1 deadline passed"; the most frequent
    first."""
    total: Counter[str] = Counter()
    for window in windows:
        total.update(window)
    return ", ".join(f"{n:,} {WORDS.get(code, code.replace('_', ' '))}" for code, n in total.most_common() if n)


def of_pools(pools: Sequence[str], instances: Columns, classes: Mapping[str, Classes]) -> dict[str, PoolTotals]:
    """Return sums by pool, and over all pools under ALL_POOLS; None if no instance or router reported a value."""
    everything = {ALL_POOLS: pools, **{pool: [pool] for pool in pools}}
    return {name: _totals(shown, instances, classes) for name, shown in everything.items()}


def _totals(pools: Sequence[str], instances: Columns, classes: Mapping[str, Classes]) -> PoolTotals:
    places = [i for i, pool in enumerate(instances["pool"]) if pool in pools]
    # No engine whose own samples have stopped, while those of its node arrive
    counted = [i for i in places if is_recent(instances["age_s"][i]) or instances["last_known"][i]]

    def column(name: str) -> list[float | None]:
        return [instances[name][i] for i in counted]

    owned = ([instances[name][i] for i in places] for name in ("gpus", "dollars_h"))
    per_gpu, per_million_tokens = economics(column("tokens_s"), *owned)
    windows = [window for pool in pools for window in classes[pool].values() if window is not None]
    return {
        "rate": _sum([window["rate"] for window in windows]),
        "running": _sum(column("running")),
        "waiting": _sum(column("waiting")),
        "tokens_s": _sum(column("tokens_s")),
        "tokens_gpu_s": per_gpu,
        "per_million": per_million_tokens,
        "gpu_use": _mean(column("gpu_use")),
        "gpu_memory": _mean(column("gpu_memory")),
        "gpu_power_w": _sum(column("gpu_power_w")),
        "gpu_simulated": _mean(column("gpu_simulated"), None),
    }


def averaged(totals: dict[str, PoolTotals], before: Mapping[str, PoolTotals], passed_s: float) -> dict[str, PoolTotals]:
    """Return totals with running averages of the cost of output tokens. `before` has the totals of the frame `passed_s`
    ago."""
    kept = exp(-max(0.0, passed_s) / AVERAGE_S)
    for pool in totals.keys() & before.keys():
        now, then = totals[pool], before[pool]
        now["tokens_gpu_s"] = _between(now["tokens_gpu_s"], then["tokens_gpu_s"], kept)
        per_dollar = _between(_inverse(now["per_million"]), _inverse(then["per_million"]), kept)
        now["per_million"] = _inverse(per_dollar)
    return totals


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None


def _between(now: float | None, then: float | None, kept: float) -> float | None:
    return now if now is None or then is None else kept * then + (1 - kept) * now


def economics(
    tokens_s: Sequence[float | None], gpus: Sequence[float | None], dollars_h: Sequence[float | None]
) -> tuple[float | None, float | None]:
    """Return (output tokens/s of a GPU, dollars per million output tokens); None without tokens or GPUs."""
    tokens, count, dollars = (sum(value or 0 for value in column) for column in (tokens_s, gpus, dollars_h))
    return (tokens / count, per_million(dollars, tokens)) if count and tokens else (None, None)


def _mean(values: Sequence[float | None], digits: int | None = 3) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    return mean if digits is None else round(mean, digits)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 1) if known else None
