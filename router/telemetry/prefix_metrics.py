"""State of the prefix indexes, for /metrics and the instance pages (in weir:router:<id>)."""

import time
from collections.abc import Iterable, Iterator

from msgspec.structs import replace
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from router.contract.redis.router_status import IndexStatus
from router.pool.endpoint import Endpoint
from router.pool.pool import Pool
from router.prefix.exact.index import TIERS

_PREFIX = "weir_router_"
_INSTANCE = ("pool", "instance")


def indexes(pools: Iterable[Pool]) -> dict[str, IndexStatus]:
    """By instance, for instances with followed KV events or answered requests."""
    now = time.time()
    return {
        endpoint.id: _status(pool, endpoint, now)
        for pool in pools
        for endpoint in pool.endpoints.values()
        if endpoint.feed is not None or endpoint.approximate.n
    }


def _status(pool: Pool, endpoint: Endpoint, now: float) -> IndexStatus:
    feed, belief, index = endpoint.feed, endpoint.belief, pool.kv_event_state.index
    accuracy = endpoint.exact if belief.index == "exact" else endpoint.approximate
    status = IndexStatus(
        index=belief.index,
        why=belief.why,
        n=accuracy.n,
        predicted=accuracy.predicted,
        actual=accuracy.actual,
        error=accuracy.error,
    )
    if feed is None or index is None:
        return status
    return replace(
        status,
        blocks=index.blocks(endpoint.id),
        age_s=round(now - feed.confirmed_at, 3) if feed.confirmed_at is not None else None,
        event_at=feed.event_at,
        gaps=feed.gaps,
        replayed=feed.replayed,
        purges=feed.purges,
        refused=dict(feed.refused),
    )


def metrics(pools: Iterable[Pool]) -> Iterator[Metric]:
    listed = list(pools)
    yield from _of_pools(listed)
    yield from _of_predictions(listed)
    yield from _of_instances(listed)


def _of_pools(pools: Iterable[Pool]) -> Iterator[Metric]:
    size = GaugeMetricFamily(_PREFIX + "index_bytes", "Memory of the exact prefix index", labels=("pool",))
    left = CounterMetricFamily(
        _PREFIX + "untokenized_requests", "Requests left to the approximate index", labels=("pool",)
    )
    for pool in pools:
        if pool.kv_event_state.index is not None:
            size.add_metric((pool.name,), pool.kv_event_state.index.bytes)
            left.add_metric((pool.name,), pool.kv_event_state.untokenized)
    yield from (size, left)


def _of_predictions(pools: Iterable[Pool]) -> Iterator[Metric]:
    tokens = CounterMetricFamily(
        _PREFIX + "index_tokens", "Cached prompt tokens, predicted and reported", labels=("pool", "index", "kind")
    )
    error = HistogramMetricFamily(
        _PREFIX + "index_error_tokens",
        "Difference between predicted and reported per request",
        labels=("pool", "index"),
    )
    for pool in pools:
        for index, outcomes in pool.kv_event_state.outcomes.items():
            tokens.add_metric((pool.name, index, "predicted"), outcomes.predicted)
            tokens.add_metric((pool.name, index, "actual"), outcomes.actual)
            error.add_metric((pool.name, index), outcomes.cumulative(), outcomes.error)
    yield from (tokens, error)


def _of_instances(pools: Iterable[Pool]) -> Iterator[Metric]:
    believed = GaugeMetricFamily(_PREFIX + "index_believed", "1 for the index in use", labels=(*_INSTANCE, "index"))
    blocks = GaugeMetricFamily(_PREFIX + "index_blocks", "KV blocks according to events", labels=(*_INSTANCE, "tier"))
    age = GaugeMetricFamily(
        _PREFIX + "index_age_seconds", "Time since the index was last known to be up to date", labels=_INSTANCE
    )
    gaps = CounterMetricFamily(_PREFIX + "index_gaps", "Gaps in the instance's events", labels=_INSTANCE)
    replayed = CounterMetricFamily(_PREFIX + "index_replayed_batches", "Batches of events replayed", labels=_INSTANCE)
    purges = CounterMetricFamily(
        _PREFIX + "index_purges", "Times that the instance's part was cleared", labels=_INSTANCE
    )
    now = time.time()
    for pool in pools:
        for endpoint in pool.endpoints.values():
            key, feed = (pool.name, endpoint.id), endpoint.feed
            believed.add_metric((*key, endpoint.belief.index), 1)
            if feed is None or pool.kv_event_state.index is None:
                continue
            for tier, count in zip(TIERS, pool.kv_event_state.index.blocks(endpoint.id), strict=True):
                blocks.add_metric((*key, tier), count)
            if feed.confirmed_at is not None:
                age.add_metric(key, now - feed.confirmed_at)
            gaps.add_metric(key, feed.gaps)
            replayed.add_metric(key, feed.replayed)
            purges.add_metric(key, feed.purges)
    yield from (believed, blocks, age, gaps, replayed, purges)
