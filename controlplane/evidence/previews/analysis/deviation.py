"""Compares the twin with the latencies that routers measured for the same requests. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from controlplane.evidence.experiments.results.statistics.stats import LOW_N
from controlplane.evidence.previews.analysis.types import Deviation
from controlplane.evidence.traces.types import MeasuredLatency, TraceRequest
from controlplane.evidence.twin.simulation.types import Simulated

WARM_UP = 0.5  # share of requests left out: the twin starts with empty caches, the fleet did not

Version = tuple[str, int]  # (policy, number)


@dataclass(frozen=True, slots=True)
class Compared:
    deviation: Deviation | None  # None with too few measurements
    versions: tuple[Version, ...]  # versions of the measurements; empty for the live one alone


def compared(requests: Sequence[TraceRequest], simulated: Sequence[Simulated], pool: str, live: Version) -> Compared:
    """Compare the TTFT in the twin under the live version with the measured one, over requests that this version
    decided.

    With fewer than LOW_N of those, over all measured requests, naming their versions.
    """
    known = [
        (measured, one.ttft_s * 1000)
        for request, one in list(zip(requests, simulated, strict=True))[int(len(requests) * WARM_UP) :]
        if (measured := request.measured) is not None and one.ttft_s is not None
        if measured.pool == pool and measured.ttft_ms
    ]
    of_live = [(measured, ms) for measured, ms in known if (measured.policy, measured.version) == live]
    if len(of_live) >= LOW_N:
        return Compared(_deviation(of_live), ())
    if len(known) < LOW_N:
        return Compared(None, ())
    return Compared(_deviation(known), tuple(sorted({(measured.policy, measured.version) for measured, _ in known})))


def _deviation(pairs: Sequence[tuple[MeasuredLatency, float]]) -> Deviation:
    """Return medians and the median ratio, which a few long waits hardly change."""
    return {
        "metric": "ttft_ms",
        "measured": round(median(measured.ttft_ms or 0.0 for measured, _ in pairs), 3),
        "twin": round(median(ms for _, ms in pairs), 3),
        "relative": round(median(ms / measured.ttft_ms for measured, ms in pairs if measured.ttft_ms) - 1, 4),
        "n": len(pairs),
        "since": min(measured.at for measured, _ in pairs),
        "until": max(measured.at for measured, _ in pairs),
    }
