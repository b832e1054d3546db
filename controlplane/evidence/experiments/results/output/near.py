"""The requests of an experiment: as a file with a row for each request, and the requests of an arm whose latency is
nearest to a point of its chart. No Django, because the records of a large experiment are read in another process than
the web process."""

from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from pathlib import Path
from typing import Any, NamedTuple

from controlplane.common import parquet
from controlplane.evidence.experiments.results import records
from controlplane.evidence.experiments.results.output import report
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
    """Return the nearest requests, slowest first. `runs` has (seed, records) of the arm."""
    found = [
        NearRequest(seed, record, ms)
        for seed, path in runs
        for record in of_class(records.read(path), point.request_class)
        if (ms := getattr(record, f"{point.latency}_ms")) is not None
    ]
    from_ms = max((one.ms for one in found), default=0.0) if point.ms is None else point.ms
    return sorted(nsmallest(NEAREST, found, key=lambda one: abs(one.ms - from_ms)), key=lambda one: -one.ms)


Runs = Sequence[tuple[str, int, Path]]  # (arm, seed, records)


def csv_file(mode: str, runs: Runs) -> bytes:
    return report.requests_csv(mode, ((arm, seed, records.read(path)) for arm, seed, path in runs)).encode()


def parquet_file(mode: str, runs: Runs) -> bytes:
    """Return a Parquet file with the columns of the CSV."""
    rows = [(arm, seed, record) for arm, seed, path in runs for record in records.read(path)]
    columns: dict[str, tuple[type, list[Any]]] = {
        "arm": (str, [arm for arm, _, _ in rows]),
        "seed": (int, [seed for _, seed, _ in rows]),
        "mode": (str, [mode] * len(rows)),
    }
    for name, kind in records.TYPES.items():
        columns[name] = (kind, [getattr(record, name) for _, _, record in rows])
    return parquet.table(columns)


FORMS: Mapping[str, Callable[[str, Runs], bytes]] = {"csv": csv_file, "parquet": parquet_file}
