"""Families of metrics for /metrics, built from (label values, value) of each sample."""

import time
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from router.contract import ranks
from router.contract.metrics.metrics_page import Histogram
from router.pool.pool import Pool
from router.telemetry.delivery_tallies import ShadowCounts
from router.telemetry.recorder import Recorder

PREFIX = "weir_router_"

Samples = Iterable[tuple[tuple[str, ...], float]]


def placed(pool: str, endpoint: str, *more: str) -> tuple[str, ...]:
    """Return the label values: pool, instance, those in `more`, and rank, which is empty for a whole instance."""
    instance, rank = ranks.split(endpoint)
    return (pool, instance, *more, rank) if rank else (pool, instance, *more)


def counter(name: str, text: str, labels: Sequence[str], samples: Samples, prefix: str = PREFIX) -> CounterMetricFamily:
    family = CounterMetricFamily(prefix + name, text, labels=labels)
    for key, value in samples:
        family.add_metric(key, value)
    return family


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples, prefix: str = PREFIX) -> GaugeMetricFamily:
    family = GaugeMetricFamily(prefix + name, text, labels=labels)
    for key, value in samples:
        family.add_metric(key, value)
    return family


def histogram(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[tuple[str, ...], Histogram]], unit: float = 1
) -> HistogramMetricFamily:
    """Build a histogram family; bounds are divided by `unit`."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for key, values in samples:
        bounds = [*(f"{bound / unit:g}" for bound in values.bounds), "+Inf"]
        buckets = [(bound, float(count)) for bound, count in zip(bounds, values.cumulative(), strict=True)]
        family.add_metric(key, buckets, values.total / unit)
    return family


# Metrics of this router's deliveries, for /metrics (docs/monitoring.md)
_PREFIX = "weir_delivery_router_"
_OF_DELIVERY = ("pool", "delivery")


def metrics(pools: list[Pool], recorder: Recorder) -> Iterator[Metric]:
    now = time.perf_counter()
    splits = [((pool.name, str(split.rollout.delivery)), split) for pool in pools if (split := pool.split) is not None]
    states = [((*key, split.state(now)), 1) for key, split in splits]
    generations = [(key, split.rollout.generation) for key, split in splits]
    shares = [(key, split.rollout.share) for key, split in splits]
    trips = [((pool.name,), pool.trips) for pool in pools]
    yield gauge("split", "1 for the state of the split", (*_OF_DELIVERY, "state"), states, _PREFIX)
    yield gauge("generation", "Of the split", _OF_DELIVERY, generations, _PREFIX)
    yield gauge("share", "Share of the requests for the candidate", _OF_DELIVERY, shares, _PREFIX)
    yield counter("trips", "Times that a candidate could not decide", ("pool",), trips, _PREFIX)
    # Of the current generation, reset when the next one starts
    found = [((pool, str(tallies.identity[0])), tallies) for pool, tallies in recorder.deliveries.items()]
    requests = [((*key, *arm), count) for key, tallies in found for arm, count in tallies.requests().items()]
    again = [((*key, result), count) for key, tallies in found for result, count in _results(tallies.shadow).items()]
    spent = [(key, tallies.shadow.cpu_s) for key, tallies in found]
    yield counter("requests", "Requests of this generation", (*_OF_DELIVERY, "arm", "class"), requests, _PREFIX)
    results = (*_OF_DELIVERY, "result")
    yield counter("shadow_decisions", "Decisions made by the candidate again", results, again, _PREFIX)
    yield counter("shadow_cpu_seconds", "CPU time of these", _OF_DELIVERY, spent, _PREFIX)


def _results(shadow: ShadowCounts) -> dict[str, int]:
    same = shadow.n - shadow.changed - shadow.raised
    return {"same": same, "changed": shadow.changed, "raised": shadow.raised}
