"""The live metrics shown beside thresholds, by the key that a parameter names."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import redis

from fleet.redis import connect, values_of
from router.contract import ranks
from router.contract.redis import redis_keys, staleness
from router.contract.redis.published import FleetValue
from router.contract.redis.router_status import NO_LOAD, WINDOW_S, Load, RouterStatus, Window, added
from router.contract.redis.sample import InstanceSample
from router.contract.values import sketch

FEW = 20  # a metric with fewer observations is marked


@dataclass(frozen=True, slots=True)
class LiveMetric:
    """One live metric; `value` is None when nothing was observed."""

    label: str  # label with its window: "p90 of new tokens, 60 s"
    value: float | None
    unit: str  # "tokens", "share", "s", "ms", "requests", "per minute"
    n: int | None = None  # number of observations; None for a reading

    @property
    def is_thin(self) -> bool:
        return self.n is not None and self.n < FEW


@dataclass(frozen=True, slots=True)
class LiveMetrics:
    """Values from Redis for some pools at one moment."""

    windows: tuple[Window, ...]  # one per router, pool and class
    inflight: dict[str, Load]  # requests of all routers, by instance or data-parallel rank
    queued: int | None  # requests waiting in the routers; None without a live router
    samples: tuple[InstanceSample, ...]  # samples of the pools' instances, without old ones


def policy_metrics(pools: Iterable[str]) -> dict[str, LiveMetric]:
    """Return the figures of these pools together; empty when Redis is unreachable."""
    try:
        live = read(list(pools))
    except redis.RedisError:
        return {}
    return {key: compute(live) for key, compute in METRICS.items()}


def read(pools: list[str], now: float | None = None) -> LiveMetrics:
    now = time.time() if now is None else now
    client: Any = connect()
    names = [n.decode() for n in client.zrangebyscore(redis_keys.ROUTERS, now - staleness.ROUTER_GONE_S, "+inf")]
    routers = values_of(RouterStatus, redis_keys.router_key, names).values()
    fleets = values_of(FleetValue, redis_keys.fleet_key, pools).values()
    instances = [instance.id for fleet in fleets for instance in fleet.instances]
    samples = values_of(InstanceSample, redis_keys.instance_key, instances).values()
    windows = tuple(window for router in routers for pool in pools for window in router.classes.get(pool, {}).values())
    recent = tuple(sample for sample in samples if staleness.is_recent(now - sample.at))
    return LiveMetrics(windows, _sent(routers, set(instances)), _queued(routers, pools), recent)


def _queued(routers: Collection[RouterStatus], pools: Iterable[str]) -> int | None:
    return (
        sum(n for router in routers for pool in pools for n in router.queued.get(pool, {}).values())
        if routers
        else None
    )


def _sent(routers: Collection[RouterStatus], instances: set[str]) -> dict[str, Load]:
    total: dict[str, Load] = dict.fromkeys(instances, (0, 0, 0)) if routers else {}
    for router in routers:
        for name, load in {**router.inflight, **router.ranks}.items():
            if ranks.instance_of(name) in instances:
                total[name] = added(total.get(name, NO_LOAD), load)
    of_ranks = {ranks.instance_of(name) for name in total if ranks.SEPARATOR in name}
    return {name: load for name, load in total.items() if name not in of_ranks}


def _quantile(live: LiveMetrics, name: str, share: float, label: str, unit: str, scale: float = 1.0) -> LiveMetric:
    merged = sketch.merge(getattr(window, name) for window in live.windows)
    value = sketch.quantile(merged, share)
    return LiveMetric(label, None if value is None else value * scale, unit, sketch.count(merged))


def _most(values: Iterable[Any], label: str, unit: str) -> LiveMetric:
    known = [float(value) for value in values if value is not None]
    return LiveMetric(label, max(known) if known else None, unit)


def _prefill_ratio(live: LiveMetrics) -> LiveMetric:
    label = "most prefill on one instance ÷ the mean of all, now"
    prefill = [load[1] for load in live.inflight.values()]
    return LiveMetric(label, max(prefill) * len(prefill) / sum(prefill) if any(prefill) else None, "ratio")


def _retries(live: LiveMetrics) -> LiveMetric:
    label = f"requests retried, {WINDOW_S} s"
    if not live.windows:
        return LiveMetric(label, None, "per minute")
    per_minute = sum(window.retries for window in live.windows) * 60 / WINDOW_S
    return LiveMetric(label, per_minute, "per minute")


_60 = f"{WINDOW_S} s"
METRICS: dict[str, Callable[[LiveMetrics], LiveMetric]] = {
    "class.new_tokens_p90": lambda m: _quantile(m, "new_tokens", 0.9, f"p90 of new tokens, {_60}", "tokens"),
    "class.hit_share_p50": lambda m: _quantile(m, "hit_percent", 0.5, f"median cached share, {_60}", "share", 0.01),
    "session.reuse_gap_p90_s": lambda m: _quantile(m, "reuse_gap", 0.9, f"p90 pause of a session, {_60}", "s"),
    "ttft_p99_ms": lambda m: _quantile(m, "ttft", 0.99, f"TTFT p99, {_60}", "ms"),
    "instance.prefill_tokens_max": lambda m: _most(
        (load[1] for load in m.inflight.values()), "most prefill on one instance, now", "tokens"
    ),
    "instance.prefill_ratio": _prefill_ratio,
    "instance.running_max": lambda m: _most(
        (load[0] for load in m.inflight.values()), "most requests on one instance, now", "requests"
    ),
    "instance.waiting_max": lambda m: _most(
        (sample.waiting for sample in m.samples), "most waiting on one instance, now", "requests"
    ),
    "queue.waiting": lambda m: LiveMetric("waiting in the routers, now", m.queued, "requests"),
    "queue.wait_p99_s": lambda m: _quantile(m, "queued", 0.99, f"p99 wait in the routers, {_60}", "s", 0.001),
    "instance.kv_usage_max": lambda m: _most(
        (sample.kv_usage for sample in m.samples), "highest KV usage of an instance, now", "share"
    ),
    "router.retries_per_min": _retries,
}
