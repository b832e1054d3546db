"""Records of finished requests. Each is written as a line when its request ends, so none is lost if the worker is
killed."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args, get_type_hints

import orjson

from router.contract.values.reading import read_json

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}  # title by key; a record has `<key>_ms`


@dataclass(frozen=True, slots=True)
class Record:
    """A request as its client saw it. Times are wall clock × time scale, except `late_wall_ms`."""

    index: int  # index in the trace
    session: str
    sent_s: float  # time since the start
    late_wall_ms: float  # delay of the sending
    input_tokens: int  # length in the trace
    ttft_ms: float | None
    tpot_ms: float | None  # None for a single token, or if all tokens arrived at once
    e2e_ms: float | None
    prompt_tokens: int | None  # as counted by the engine
    cached_tokens: int | None
    output_tokens: int | None
    instance: str
    routed_class: str  # class assigned by the router
    trace_class: str  # class with an unbounded cache, and therefore the same in every arm
    policy_version: str
    status: int  # HTTP status, 0 without an answer
    outcome: (
        str  # ok, client_error, error, refused or cancelled; client errors are errors in records of earlier versions
    )
    error: str
    # Parts of the TTFT; unknown in a replay
    queue_ms: float | None = None  # time spent in the queues of the router and the engine
    kv_ms: float | None = None  # wait for KV from another instance, a store or a tier
    prefill_ms: float | None = None  # remaining time: computation, and the engine's API
    # `cached_tokens` by place; unknown in a replay if the engine does not report it
    cached_device: int | None = None
    cached_host: int | None = None
    cached_disk: int | None = None
    cached_pulled: int | None = None  # tokens from another instance, or from a store shared by instances


def cached_by_place(tokens: Sequence[int]) -> dict[str, int]:
    """Return fields of a record. `tokens` are those from device, host memory, disk, and pulled."""
    return dict(zip(("cached_device", "cached_host", "cached_disk", "cached_pulled"), tokens, strict=True))


COLUMNS = tuple(field.name for field in fields(Record))
TYPES: dict[str, type] = {
    name: next(kind for kind in (int, float, str) if kind in (hint, *get_args(hint)))
    for name, hint in get_type_hints(Record).items()
}


class Appender:
    """Appends each record with a single write(), so that records survive if this process is killed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, record: Record) -> None:
        line = orjson.dumps(record) + b"\n"
        if os.write(self._fd, line) != len(line):
            raise OSError("the disk is full: a record could not be written whole")

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path) -> list[Record]:
    """Return every complete record; empty without a file. A truncated last line is ignored."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found = (_parsed(line) for line in lines if line)
    return [record for record in found if record is not None]


def _parsed(line: bytes) -> Record | None:
    try:
        return read_json(line, Record)
    except ValueError:
        return None


# Service levels: limits in ms within which an answer counts
# Class → ttft_ms, tpot_ms, e2e_ms; "all" for classes without limits of their own
Slo = Mapping[str, Mapping[str, float]]

NO_SLO: Slo = {}


def is_within(record: Record, slo: Slo) -> bool:
    """Return whether an answer is within every limit of its class. An unknown TPOT (of a single token) violates no
    limit."""
    limits = slo.get(record.trace_class, slo.get("all"))
    return limits is not None and record.outcome == "ok" and all(_holds(record, limits, key) for key in LATENCIES)


def _holds(record: Record, limits: Mapping[str, float], latency: str) -> bool:
    limit, value = limits.get(f"{latency}_ms"), getattr(record, f"{latency}_ms")
    return limit is None or value is None or value <= limit


def seconds(records: Iterable[Record]) -> float:
    """Return the seconds from the first request of a run to the end of the last, in the engine's time."""
    spans = [(record.sent_s, record.sent_s + (record.e2e_ms or 0.0) / 1000) for record in records]
    return max(end for _, end in spans) - min(sent for sent, _ in spans) if spans else 0.0
