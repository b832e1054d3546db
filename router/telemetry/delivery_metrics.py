"""How this router serves deliveries, for /metrics (docs/monitoring.md)."""

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from router.pool.pool import Pool
from router.telemetry.delivery_tallies import ShadowCounts
from router.telemetry.recorder import Recorder

_PREFIX = "weir_delivery_router_"
_OF_DELIVERY = ("pool", "delivery")


def metrics(pools: list[Pool], recorder: Recorder) -> Iterator[Metric]:
    split = GaugeMetricFamily(_PREFIX + "split", "1 for the state of the split", labels=(*_OF_DELIVERY, "state"))
    generation = GaugeMetricFamily(_PREFIX + "generation", "Of the split", labels=_OF_DELIVERY)
    share = GaugeMetricFamily(_PREFIX + "share", "Share of the requests for the candidate", labels=_OF_DELIVERY)
    trips = CounterMetricFamily(_PREFIX + "trips", "Times that a candidate could not decide", labels=("pool",))
    now = time.perf_counter()
    for pool in pools:
        trips.add_metric((pool.name,), pool.trips)
        if pool.split is not None:
            rollout = pool.split.rollout
            of_delivery = (pool.name, str(rollout.delivery))
            split.add_metric((*of_delivery, pool.split.state(now)), 1)
            generation.add_metric(of_delivery, rollout.generation)
            share.add_metric(of_delivery, rollout.share)
    yield from (split, generation, share, trips)
    yield from _counts(recorder)


def _counts(recorder: Recorder) -> Iterator[Metric]:
    """Of the present generation: they start again with the next one."""
    by_arm, by_result = (*_OF_DELIVERY, "arm", "class"), (*_OF_DELIVERY, "result")
    requests = CounterMetricFamily(_PREFIX + "requests", "Requests of this generation", labels=by_arm)
    shadow = CounterMetricFamily(
        _PREFIX + "shadow_decisions", "Decisions made by the candidate again", labels=by_result
    )
    spent = CounterMetricFamily(_PREFIX + "shadow_cpu_seconds", "CPU time of these", labels=_OF_DELIVERY)
    for pool, tallies in recorder.deliveries.items():
        of_delivery = (pool, str(tallies.identity[0]))
        for (arm, name), count in tallies.requests().items():
            requests.add_metric((*of_delivery, arm, name), count)
        for result, count in _results(tallies.shadow).items():
            shadow.add_metric((*of_delivery, result), count)
        spent.add_metric(of_delivery, tallies.shadow.cpu_s)
    yield from (requests, shadow, spent)


def _results(shadow: ShadowCounts) -> dict[str, int]:
    same = shadow.n - shadow.changed - shadow.raised
    return {"same": same, "changed": shadow.changed, "raised": shadow.raised}
