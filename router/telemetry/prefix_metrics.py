"""State of the prefix indexes, for /metrics and for the pages of instances (in weir:router:<id>)."""

import time
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace
from prometheus_client.core import Metric

from router.contract.redis.router_status import IndexStatus
from router.pool.endpoint import Endpoint
from router.pool.kv_event_state import IndexLink
from router.pool.pool import Pool
from router.prefix.exact.index import TIERS
from router.telemetry.families import counter, gauge, histogram, placed

_INSTANCE = ("pool", "instance")
_RANK = (*_INSTANCE, "rank")


def indexes(pools: Iterable[Pool]) -> dict[str, IndexStatus]:
    """Return index states by endpoint, for endpoints whose KV events are followed or that have answered requests,
    including refusals."""
    now = time.time()
    return {
        endpoint.id: _status(pool, endpoint, now)
        for pool in pools
        for endpoint in pool.endpoints.values()
        if endpoint.feed is not None or endpoint.approximate.n or endpoint.refused
    }


def _status(pool: Pool, endpoint: Endpoint, now: float) -> IndexStatus:
    feed, belief, index = endpoint.feed, endpoint.belief, pool.kv_event_state.known
    accuracy = endpoint.exact if belief.index == "exact" else endpoint.approximate
    status = IndexStatus(
        index=belief.index,
        why=belief.why,
        but_for=belief.but_for,
        n=accuracy.n,
        predicted=accuracy.predicted,
        actual=accuracy.actual,
        error=accuracy.error,
        refused=dict(endpoint.refused),
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
        refused=dict(endpoint.refused + feed.refused),
    )


def metrics(pools: Iterable[Pool], links: Sequence[IndexLink]) -> Iterator[Metric]:
    listed = list(pools)
    yield from _of_pools(listed)
    yield from _of_instances(listed)
    if links:
        yield from _of_links(links)


def _of_links(links: Sequence[IndexLink]) -> Iterator[Metric]:
    keys = [(link.path,) for link in links]
    up = [(key, 0 if link.trouble else 1) for key, link in zip(keys, links, strict=True)]
    yield gauge("index_process_up", "1 while the index process answers", ("socket",), up)
    memory = [(key, link.resident_bytes) for key, link in zip(keys, links, strict=True)]
    yield gauge("index_process_bytes", "Resident memory of the index process", ("socket",), memory)
    cpu = [(key, link.cpu_s) for key, link in zip(keys, links, strict=True)]
    yield counter("index_process_cpu_seconds", "CPU time of the index process", ("socket",), cpu)
    results = [
        ((link.path, result), n)
        for link in links
        for result, n in (("answered", link.answered), ("late", link.late), ("lost", link.lost))
    ]
    yield counter("index_lookups", "Look-ups in the index process", ("socket", "result"), results)
    seconds = [(key, link.seconds) for key, link in zip(keys, links, strict=True)]
    yield histogram("index_lookup_seconds", "Duration of answered look-ups", ("socket",), seconds)


def _of_pools(pools: list[Pool]) -> Iterator[Metric]:
    states = [((pool.name,), pool.kv_event_state) for pool in pools]
    sizes = [(key, index.bytes) for key, state in states if (index := state.known) is not None]
    left = [(key, state.untokenized) for key, state in states if state.known is not None]
    yield gauge("index_bytes", "Memory of the exact prefix index", ("pool",), sizes)
    yield counter("untokenized_requests", "Requests that the router cannot tokenise itself", ("pool",), left)
    asked = [((*key, *why), n) for key, state in states for why, n in state.in_force.items()]
    help_text = "Attempts by the index that predicted, and why no exact one did"
    yield counter("index_requests", help_text, ("pool", "index", "reason"), asked)
    found = [((*key, index), outcomes) for key, state in states for index, outcomes in state.outcomes.items()]
    tokens = [
        ((*key, kind), count)
        for key, outcomes in found
        for kind, count in (("predicted", outcomes.predicted), ("actual", outcomes.actual))
    ]
    labels = ("pool", "index")
    yield counter("index_tokens", "Cached prompt tokens, predicted and reported", (*labels, "kind"), tokens)
    errors = [(key, outcomes.error) for key, outcomes in found]
    yield histogram("index_error_tokens", "Difference between predicted and reported per request", labels, errors)


def _of_instances(pools: list[Pool]) -> Iterator[Metric]:
    now, endpoints = time.time(), [(pool, endpoint) for pool in pools for endpoint in pool.endpoints.values()]
    believed = [(placed(pool.name, endpoint.id, endpoint.belief.index), 1) for pool, endpoint in endpoints]
    followed = [
        ((pool.name, endpoint.id), endpoint.feed, index.blocks(endpoint.id))
        for pool, endpoint in endpoints
        if endpoint.feed is not None and (index := pool.kv_event_state.known) is not None
    ]
    blocks = [(placed(*key, tier), n) for key, _, counts in followed for tier, n in zip(TIERS, counts, strict=True)]
    ages = [(placed(*key), now - feed.confirmed_at) for key, feed, _ in followed if feed.confirmed_at is not None]
    yield gauge("index_believed", "1 for the index in use", (*_INSTANCE, "index", "rank"), believed)
    yield gauge("index_blocks", "KV blocks according to events", (*_INSTANCE, "tier", "rank"), blocks)
    yield gauge("index_age_seconds", "Time since the index was last known to be up to date", _RANK, ages)
    gaps = [(placed(*key), feed.gaps) for key, feed, _ in followed]
    replayed = [(placed(*key), feed.replayed) for key, feed, _ in followed]
    purges = [(placed(*key), feed.purges) for key, feed, _ in followed]
    yield counter("index_gaps", "Gaps in the instance's events", _RANK, gaps)
    yield counter("index_replayed_batches", "Batches of events replayed", _RANK, replayed)
    yield counter("index_purges", "Times that the instance's part was cleared", _RANK, purges)
