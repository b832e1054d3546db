"""How far the twin is from what routers measured of the same requests. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from controlplane.experiments.results.stats import LOW_N
from controlplane.traces.types import MeasuredLatency, TraceRequest
from controlplane.twin.simulation.types import Simulated

WARM_UP = 0.5  # share of the requests that is left out: the twin's caches are empty at first, the fleet's were not

Version = tuple[str, int]  # policy and number


@dataclass(frozen=True, slots=True)
class Compared:
    deviation: dict[str, Any] | None  # None: too few were measured
    versions: tuple[Version, ...]  # that the measured ones stem from; empty when it is the live one alone


def compared(requests: Sequence[TraceRequest], simulated: Sequence[Simulated], pool: str, live: Version) -> Compared:
    """The twin's TTFT under the live version against the measured, on requests that the live version decided.

    When those are fewer than LOW_N, on all of them, with the versions that they stem from.
    """
    known = [
        (measured, one.ttft_s * 1000)
        for request, one in list(zip(requests, simulated, strict=True))[int(len(requests) * WARM_UP) :]
        if (measured := request.measured) is not None and one.ttft_s is not None
        if measured.pool == pool and measured.ttft_ms
    ]
    own = [(measured, ms) for measured, ms in known if (measured.policy, measured.version) == live]
    if len(own) >= LOW_N:
        return Compared(_deviation(own), ())
    if len(known) < LOW_N:
        return Compared(None, ())
    return Compared(_deviation(known), tuple(sorted({(measured.policy, measured.version) for measured, _ in known})))


def _deviation(pairs: Sequence[tuple[MeasuredLatency, float]]) -> dict[str, Any]:
    """Medians, and the median of the ratios: a few requests that waited long do not decide it."""
    return {
        "metric": "ttft_ms",
        "measured": round(median(measured.ttft_ms or 0.0 for measured, _ in pairs), 3),
        "twin": round(median(ms for _, ms in pairs), 3),
        "relative": round(median(ms / measured.ttft_ms for measured, ms in pairs if measured.ttft_ms) - 1, 4),
        "n": len(pairs),
        "since": min(measured.at for measured, _ in pairs),
        "until": max(measured.at for measured, _ in pairs),
    }
