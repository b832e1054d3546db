"""Families of metrics for /metrics, from (values of the labels, value) of each sample."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from router.contract import ranks
from router.contract.metrics.metrics_page import Histogram

PREFIX = "weir_router_"

Samples = Iterable[tuple[tuple[str, ...], float]]


def placed(pool: str, endpoint: str, *more: str) -> tuple[str, ...]:
    """Return the label values pool, instance, those of `more`, and rank, which is empty for a whole instance."""
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
    """Make a histogram family; bounds are divided by `unit`."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for key, values in samples:
        bounds = [*(f"{bound / unit:g}" for bound in values.bounds), "+Inf"]
        buckets = [(bound, float(count)) for bound, count in zip(bounds, values.cumulative(), strict=True)]
        family.add_metric(key, buckets, values.total / unit)
    return family
