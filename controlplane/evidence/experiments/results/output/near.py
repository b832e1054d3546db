"""Finds the requests behind a point of a chart: those of an arm whose latency is nearest to it. No Django, as the
records of a large experiment are read beside the web process."""

from collections.abc import Sequence
from heapq import nsmallest
from pathlib import Path
from typing import NamedTuple

from controlplane.evidence.experiments.results import records
from controlplane.evidence.experiments.results.records import Record
from controlplane.evidence.experiments.results.summarize import of_class

NEAREST = 25


class LatencyPoint(NamedTuple):
    request_class: str  # class, or "all"
    latency: str  # key of LATENCIES
    ms: float | None  # None for a point above all requests


class NearRequest(NamedTuple):
    seed: int
    record: Record
    ms: float  # latency of the request


def nearest(runs: Sequence[tuple[int, Path]], point: LatencyPoint) -> list[NearRequest]:
    """Return the nearest requests, slowest first. `runs`: (seed, records) of the arm."""
    found = [
        NearRequest(seed, record, ms)
        for seed, path in runs
        for record in of_class(records.read(path), point.request_class)
        if (ms := getattr(record, f"{point.latency}_ms")) is not None
    ]
    from_ms = max((one.ms for one in found), default=0.0) if point.ms is None else point.ms
    return sorted(nsmallest(NEAREST, found, key=lambda one: abs(one.ms - from_ms)), key=lambda one: -one.ms)
