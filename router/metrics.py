"""/metrics: the router's counters in Prometheus' text format, collected at each scrape, so that serving requests costs
nothing extra."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from router.contract.metrics.metrics_page import Histogram
from router.http.clients import ClientConnections
from router.pool import affinity
from router.pool.endpoint import Endpoint
from router.pool.pool import Pool
from router.pool.ranks import RANK_REFUSED
from router.request_path import ROUTER
from router.telemetry import families, prefix_metrics
from router.telemetry.families import PREFIX, counter, gauge, histogram, placed
from router.telemetry.recorder import Recorder

if TYPE_CHECKING:
    from router.source import PoolSource
    from router.sync.live_state import LiveState
    from router.sync.peers import RouterPeers


# Each store of past requests is limited, to bound the memory of a long-running router.
STORES = ("sessions", "conversations", "spans", "chunks", "stretches")


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
        yield from prefix_metrics.metrics(self._pools.all(), self._pools.index_links)
        yield from self._kept_entries()
        yield from families.metrics(list(self._pools.all()), self._recorder)
        yield from self._keys()
        yield from self._client_connections()
        yield _single("stored_responses", "Responses whose instance is known", len(self._source.responses))
        yield _single("compiled", "1 where the request path runs compiled", float(ROUTER.runs()))
        yield _single("tasks", "Tasks of the event loop: about one per request and a few permanent ones", _tasks())
        yield from self._source.metrics()

    def _traffic(self) -> Iterator[Metric]:
        record = self._recorder
        yield counter("requests", "Requests by outcome", ("pool", "class", "outcome"), record.outcomes().items())
        retries = [(placed(*key), count) for key, count in record.retries.items()]
        yield counter("retries", "Attempts that failed and were repeated", ("pool", "instance", "rank"), retries)
        yield counter("errors", "Errors returned to clients", ("pool", "code"), record.errors.items())
        decisions = [(placed(*key), count) for key, count in record.decisions.items()]
        yield counter("decisions", "Decisions by instance and rule", ("pool", "instance", "rule", "rank"), decisions)
        offloads = ("pool", "connector", "outcome")
        yield counter("offloads", "Prefills placed on another instance", offloads, record.offloads.items())
        bands = [((pool, str(band), outcome), count) for (pool, band, outcome), count in record.bands.items()]
        yield counter("band_requests", "Requests by priority band and outcome", ("pool", "band", "outcome"), bands)
        served = ("pool", "model", "outcome")
        yield counter("model_requests", "Requests for a name of the document Models", served, record.models.items())
        spans = [((result,), count) for result, count in record.spans.items()]
        yield counter("spans", "Spans by what became of them", ("result",), spans)
        fell_back = ("pool", "model", "condition")
        yield counter("fallbacks", "Fallbacks from a pool", fell_back, record.fallbacks.items())
        yield counter("tokens", "Tokens reported by engines, and predicted", ("pool", "kind"), record.tokens().items())
        for name, text, of in (
            ("time_to_first_token_seconds", "Time to the first byte of a streamed response", "ttft"),
            ("time_per_output_token_seconds", "Time per output token after the first", "tpot"),
            ("request_seconds", "Duration of served requests", "e2e"),
        ):
            yield histogram(name, text, ("pool", "class"), _of(record, of), unit=1000)  # s

    def _client_connections(self) -> Iterator[Metric]:
        clients = self._clients
        yield _single("client_connections", "Connections of clients", len(clients.open))
        ended = {
            ("refused",): clients.refused,
            ("closed_idle",): clients.closed,
            ("stalled",): clients.stalled,
            ("unread",): clients.unread,
        }
        help_ = "Connections refused or closed idle for want of room, or given up as their clients did not read"
        yield counter("client_connections_ended", help_, ("reason",), ended.items())

    def _keys(self) -> Iterator[Metric]:
        """Label by key id: anyone who can reach the port can read the metrics, and names would reveal the clients."""
        requests: Counter[tuple[str, str]] = Counter()
        tokens: Counter[tuple[str]] = Counter()
        for meter in self._pools.auth.meters.values():
            tokens[(meter.key.id,)] += meter.tokens
            for outcome, count in meter.outcomes.items():
                requests[meter.key.id, outcome] += count
        yield counter("key_requests", "Requests with an API key by outcome", ("key", "outcome"), requests.items())
        yield counter("key_tokens", "Tokens reported by engines for an API key", ("key",), tokens.items())

    def _instances(self) -> Iterator[Metric]:
        labels = ("pool", "instance", "rank")
        found = [
            (placed(pool.name, endpoint.id), endpoint)
            for pool in self._pools.all()
            for endpoint in pool.endpoints.values()
        ]
        instances = [(key[:2], endpoint) for key, endpoint in found if endpoint is endpoint.ranks.endpoints[0]]

        def each(name: str, text: str, value: Callable[[Endpoint], float]) -> Metric:
            return gauge(name, text, labels, ((key, value(endpoint)) for key, endpoint in found))

        yield each("inflight_requests", "Requests sent and not finished", lambda one: one.requests)
        yield each(
            "inflight_prefill_tokens", "New tokens of requests without a first byte", lambda one: one.prefill_tokens
        )
        yield each("inflight_decodes", "Streams past their first byte", lambda one: one.decodes)
        yield each("pace", "Speed of computing prompts, against the pool's median instance", lambda one: one.pace)
        breakers = [(key, float(one.breaker.state != "closed")) for key, one in instances]
        yield gauge("breaker_open", "1 while the breaker is not closed", labels, breakers)
        stalled = ((key, float(bool(one.progress.stalled))) for key, one in found)
        yield gauge("stalled", "1 while it holds requests and produces no token for too long", labels, stalled)
        connections = [(key, len(one.upstream.connections)) for key, one in instances]
        yield gauge("upstream_connections", "Connections to the engine, including idle ones", labels, connections)
        refused = [(key, one.refused[RANK_REFUSED]) for key, one in found if one.rank is not None]
        yield counter("rank_refusals", "Requests sent again without the rank that the engine refused", labels, refused)
        chunks = [
            (placed(pool.name, name), pool.index.chunks(name)) for pool in self._pools.all() for name in pool.endpoints
        ]
        yield gauge("prefix_chunks", "Prompt chunks expected in the instance's cache", labels, chunks)

    def _pools_state(self) -> Iterator[Metric]:
        pools = list(self._pools.all())

        def each(name: str, text: str, value: Callable[[Pool], float]) -> Metric:
            return gauge(name, text, ("pool",), (((pool.name,), value(pool)) for pool in pools))

        yield each("policy_version", "Current version, 0 for the built-in default", lambda pool: pool.version)
        yield each("ready_instances", "Instances that take requests", lambda pool: pool.ready)
        stalls = (((pool.name,), pool.stalls) for pool in pools)
        yield counter("stalls", "Engines found to hold requests without producing a token", ("pool",), stalls)
        yield each("held_requests", "Requests waiting for the pool to wake", lambda pool: pool.held)
        yield each("wake_seconds", "How long a wake takes, as clients are told", lambda pool: pool.wakes.expected_s)
        yield each("sessions", "Sessions with a known instance", lambda pool: len(pool.affinity))
        waiting = [((pool.name, name), count) for pool in pools for name, count in pool.queue.waiting.items()]
        yield gauge("queued_requests", "Requests waiting for capacity", ("pool", "class"), waiting)
        bands = [((pool.name, str(band)), n) for pool in pools for band, n in pool.queue.waiting_by_band().items()]
        yield gauge("band_queued_requests", "Requests waiting for capacity, by priority band", ("pool", "band"), bands)
        yield each("tokens_per_byte", "Estimated from the usage in responses", lambda pool: pool.tokens.per_byte)
        # In these metrics 0 means unknown.
        prefill = "Prefill speed of an instance that computes one prompt"
        yield each("prefill_tokens_per_second", prefill, lambda pool: pool.rates.prefill_tokens_per_s)
        transfer = "Transfer rate of KV blocks between instances"
        yield each("transfer_bytes_per_second", transfer, lambda pool: pool.rates.transfer_bytes_per_s)
        setup = "Fixed time of a KV transfer"
        yield each("transfer_setup_seconds", setup, lambda pool: pool.rates.transfer_setup_s)

    def _kept_entries(self) -> Iterator[Metric]:
        labels = ("pool", "store")
        found = [((pool.name, name), sizes) for pool in self._pools.all() for name, sizes in stores(pool).items()]
        kept, limit = "Entries kept of past requests", "Limit of the entries kept"
        yield gauge("kept_entries", kept, labels, ((key, entries) for key, (entries, _) in found))
        yield gauge("kept_entries_limit", limit, labels, ((key, most) for key, (_, most) in found))


def stores(pool: Pool) -> dict[str, tuple[int, int]]:
    """Return (entries, limit) by name of the store; docs/router.md describes them."""
    index, chains, sessions = pool.index, pool.chains, pool.affinity
    counts = (
        (len(sessions), affinity.KEPT),
        (sessions.unnamed, affinity.KEPT),
        (len(chains), chains.kept),
        (index.copies, index.max_chunks),
        (index.stretches, index.max_stretches),
    )
    return dict(zip(STORES, counts, strict=True))


def of_redis(live: "LiveState", record: Recorder, peers: "RouterPeers") -> Iterator[Metric]:
    yield _single("redis_up", "1 when Redis answered the last command", float(live.redis_up))
    yield _single("receipts_pending", "Receipts waiting for Redis", len(record.pending))
    yield _total("receipts_lost", "Receipts dropped while Redis was unreachable", record.lost)
    yield _total("receipts_unwritable", "Receipts dropped because they could not be encoded", record.unwritable)
    yield _total("use_lost_hours", "Hours of use forgotten before the database had them", record.use.lost_hours)
    yield _total("use_merged", "Requests whose use is counted under other keys' name", record.use.merged)
    written = {(result,): count for result, count in record.traffic.items()}
    yield counter("traffic_entries", "Entries of recorded traffic", ("result",), written.items())
    yield _total("unreadable_values", "Values in Redis that could not be read", live.unreadable)
    yield _total("older_values", "Values in Redis refused as older than those in force", live.in_force.older)
    yield _single("other_routers", "Other routers alive on the same Redis", len(peers))
    exchanged = {("heard",): peers.taken, ("told",): peers.prompts_sent, ("dropped",): peers.untold}
    yield counter("exchanged_prompts", "Prompts exchanged between routers", ("result",), exchanged.items())


def of_files(reloads: Mapping[str, int]) -> Iterator[Metric]:
    counted = {(result,): count for result, count in reloads.items()}
    yield counter("reloads", "Reloads of the policy and instances", ("result",), counted.items())


def render(source: "PoolSource", clients: ClientConnections) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RouterCollector(source, clients))
    return generate_latest(registry)


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # called outside the event loop
        return 0


def _of(record: Recorder, name: str) -> list[tuple[tuple[str, str], Histogram]]:
    histograms = [(key, getattr(tally, name)) for key, tally in record.tallies.items()]
    return [(key, histogram) for key, histogram in histograms if any(histogram.counts)]


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _total(name: str, text: str, value: int) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, value=value)
