"""Metrics of this router's deliveries, for /metrics (docs/monitoring.md)."""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from router.pool.pool import Pool
from router.telemetry.delivery_tallies import ShadowCounts
from router.telemetry.families import counter, gauge
from router.telemetry.recorder import Recorder

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
    # Of the present generation, reset with the next one
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
