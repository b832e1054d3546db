"""/metrics: the router's counters in Prometheus' text format, collected at each scrape, at no cost to serving."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from router.contract.histogram import Histogram
from router.http.clients import ClientConnections
from router.pool import memory_limits
from router.telemetry import delivery_metrics, prefix_metrics
from router.telemetry.recorder import Recorder
from router.telemetry.tally import BOUNDS_MS

if TYPE_CHECKING:
    from router.source import PoolSource
    from router.sync.live_state import LiveState
    from router.sync.peers import RouterPeers

PREFIX = "weir_router_"

Labels = TypeVar("Labels", bound=tuple[str, ...])


class RouterCollector(Collector):
    def __init__(self, source: "PoolSource", clients: ClientConnections) -> None:
        self._clients = clients
        self._pools = source.pools
        self._recorder = source.recorder
        self._source = source

    def collect(self) -> Iterable[Metric]:
        yield from self._traffic()
        yield from self._instances()
        yield from self._pools_state()
        yield from prefix_metrics.metrics(self._pools.all())
        yield from memory_limits.metrics(self._pools.all())
        yield from delivery_metrics.metrics(list(self._pools.all()), self._recorder)
        yield from self._keys()
        yield from self._client_connections()
        yield _single("tasks", "Tasks of the event loop: about one per request and a few permanent ones", _tasks())
        yield from self._source.metrics()

    def _traffic(self) -> Iterator[Metric]:
        record = self._recorder
        yield _counter("requests", "Requests by outcome", ("pool", "class", "outcome"), record.outcomes())
        yield _counter("retries", "Attempts that failed and were repeated", ("pool", "instance"), record.retries)
        yield _counter("errors", "Errors returned to clients", ("pool", "code"), record.errors)
        yield _counter("decisions", "Decisions by instance and rule", ("pool", "instance", "rule"), record.decisions)
        offloads = ("pool", "connector", "outcome")
        yield _counter("offloads", "Prefills placed on another instance", offloads, record.offloads)
        yield _counter("tokens", "Tokens reported by engines, and predicted", ("pool", "kind"), record.tokens())
        yield _histogram(
            "time_to_first_token_seconds", "Time to the first byte of a streamed response", _of(record, "ttft")
        )
        yield _histogram("time_per_output_token_seconds", "Time per output token after the first", _of(record, "tpot"))
        yield _histogram("request_seconds", "Duration of served requests", _of(record, "e2e"))

    def _client_connections(self) -> Iterator[Metric]:
        clients = self._clients
        yield _single("client_connections", "Connections of clients", len(clients.open))
        ended = {("refused",): clients.refused, ("closed_idle",): clients.closed, ("stalled",): clients.stalled}
        help_ = "Connections refused or closed idle for want of room, or given up as their clients did not read"
        yield _counter("client_connections_ended", help_, ("reason",), ended)

    def _keys(self) -> Iterator[Metric]:
        """Labelled by key name; the number of keys bounds the number of series."""
        requests: Counter[tuple[str, str]] = Counter()
        tokens: Counter[tuple[str]] = Counter()
        for meter in self._pools.auth.meters.values():
            tokens[(meter.key.name,)] += meter.tokens
            for outcome, count in meter.outcomes.items():
                requests[meter.key.name, outcome] += count
        yield _counter("key_requests", "Requests with an API key by outcome", ("key", "outcome"), requests)
        yield _counter("key_tokens", "Tokens reported by engines for an API key", ("key",), tokens)

    def _instances(self) -> Iterator[Metric]:
        labels = ("pool", "instance")
        inflight = _gauge("inflight_requests", "Requests sent and not finished", labels)
        prefill = _gauge("inflight_prefill_tokens", "New tokens of requests without a first byte", labels)
        decodes = _gauge("inflight_decodes", "Streams past their first byte", labels)
        breaker = _gauge("breaker_open", "1 while the breaker is not closed", labels)
        connections = _gauge("upstream_connections", "Connections to the engine, including idle ones", labels)
        chunks = _gauge("prefix_chunks", "Prompt chunks expected in the instance's cache", labels)
        for pool in self._pools.all():
            for endpoint in pool.endpoints.values():
                key = (pool.name, endpoint.id)
                inflight.add_metric(key, endpoint.requests)
                prefill.add_metric(key, endpoint.prefill_tokens)
                decodes.add_metric(key, endpoint.decodes)
                breaker.add_metric(key, endpoint.breaker.state != "closed")
                connections.add_metric(key, len(endpoint.upstream.connections))
                chunks.add_metric(key, pool.index.chunks(endpoint.id))
        yield from (inflight, prefill, decodes, breaker, connections, chunks)

    def _pools_state(self) -> Iterator[Metric]:
        version = _gauge("policy_version", "Current version, 0 for the built-in default", ("pool",))
        ready = _gauge("ready_instances", "Instances that take requests", ("pool",))
        sessions = _gauge("sessions", "Sessions with a known instance", ("pool",))
        waiting = _gauge("queued_requests", "Requests waiting for capacity", ("pool", "class"))
        ratio = _gauge("tokens_per_byte", "Estimated from the usage in responses", ("pool",))
        for pool in self._pools.all():
            version.add_metric((pool.name,), pool.version)
            ready.add_metric((pool.name,), pool.ready)
            sessions.add_metric((pool.name,), len(pool.affinity))
            ratio.add_metric((pool.name,), pool.tokens.per_byte)
            for request_class, count in pool.queue.waiting.items():
                waiting.add_metric((pool.name, request_class), count)
        yield from (version, ready, sessions, waiting, ratio)
        yield from self._rates()

    def _rates(self) -> Iterator[Metric]:
        """0 means unknown."""
        prefill = _gauge(
            "prefill_tokens_per_second", "Prefill speed of an instance that computes one prompt", ("pool",)
        )
        transfer = _gauge("transfer_bytes_per_second", "Transfer rate of KV blocks between instances", ("pool",))
        setup = _gauge("transfer_setup_seconds", "Fixed time of a KV transfer", ("pool",))
        for pool in self._pools.all():
            prefill.add_metric((pool.name,), pool.rates.prefill_tokens_per_s)
            transfer.add_metric((pool.name,), pool.rates.transfer_bytes_per_s)
            setup.add_metric((pool.name,), pool.rates.transfer_setup_s)
        yield from (prefill, transfer, setup)


def of_redis(live: "LiveState", record: Recorder, peers: "RouterPeers") -> Iterator[Metric]:
    yield _single("redis_up", "1 when Redis answered the last command", float(live.redis_up))
    yield _single("receipts_pending", "Receipts waiting for Redis", len(record.pending))
    yield _total("receipts_lost", "Receipts dropped while Redis was unreachable", record.lost)
    yield _total("receipts_unwritable", "Receipts dropped because they could not be encoded", record.unwritable)
    written = {(result,): count for result, count in record.traffic.items()}
    yield _counter("traffic_entries", "Entries of recorded traffic", ("result",), written)
    yield _total("unreadable_values", "Values in Redis that could not be read", live.unreadable)
    yield _single("other_routers", "Other routers alive on the same Redis", len(peers))
    exchanged = {("heard",): peers.taken, ("told",): peers.prompts_sent, ("dropped",): peers.untold}
    yield _counter("exchanged_prompts", "Prompts exchanged between routers", ("result",), exchanged)


def of_files(reloads: Mapping[str, int]) -> Iterator[Metric]:
    counted = {(result,): count for result, count in reloads.items()}
    yield _counter("reloads", "Reloads of the policy and instances", ("result",), counted)


def render(source: "PoolSource", clients: ClientConnections) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RouterCollector(source, clients))
    return generate_latest(registry)


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # called outside the event loop
        return 0


def _of(record: Recorder, name: str) -> dict[tuple[str, str], Histogram]:
    histograms = {key: getattr(tally, name) for key, tally in record.tallies.items()}
    return {key: histogram for key, histogram in histograms.items() if any(histogram.counts)}


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[Labels, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=labels)


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _total(name: str, text: str, value: int) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _histogram(name: str, text: str, values: Mapping[tuple[str, str], Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(PREFIX + name, text, labels=("pool", "class"))
    bounds = [*(f"{bound / 1000:g}" for bound in BOUNDS_MS), "+Inf"]  # s
    for key, histogram in values.items():
        buckets = [(bound, float(count)) for bound, count in zip(bounds, histogram.cumulative(), strict=True)]
        family.add_metric(key, buckets, histogram.total / 1000)
    return family
