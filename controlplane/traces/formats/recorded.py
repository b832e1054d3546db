"""Traffic that routers recorded (docs/redis.md): JSONL, one finished request per line.

Only requests that were answered are played, and of those only the ones whose number of output tokens is known. How long
a client thought is not recorded, so arrivals are those of the clock.
"""

import math
from base64 import b64decode
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import median_low
from typing import Any

from controlplane.traces.formats import fields
from controlplane.traces.types import BadTrace, LoadedTrace, MeasuredLatency, TraceRequest

SCHEMA = 1  # of a TrafficEntry
HASH_BYTES = 8
MAX_AT_S = 1e11  # Unix


def detects(head: str) -> bool:
    return '"block_tokens"' in head and '"blocks"' in head


def read(lines: Iterable[str], seed: int) -> LoadedTrace:
    """Block ids are numbers by first appearance; all requests have blocks of one size, the middle one of theirs."""
    numbers: dict[bytes, int] = {}
    read_lines = 0
    requests, bounds = [], fields.RunBounds()
    for line, row in fields.json_lines(_once(lines)):
        read_lines += 1
        request = _request(row, line, numbers)
        if request is not None:
            bounds.check(line, "blocks", request.blocks)
            requests.append(request)
    if not requests:
        allowed = "at least one request that was answered and whose number of output tokens is known"
        raise BadTrace(0, "outcome", f"none of {read_lines:,} entries", allowed)
    requests.sort(key=lambda request: request.at_s)
    start = requests[0].at_s
    block_tokens = median_low([request.block_tokens for request in requests])
    made = (replace(r, index=i, at_s=r.at_s - start, block_tokens=block_tokens) for i, r in enumerate(requests))
    return LoadedTrace("recorded", tuple(made), "timestamps")


def _once(lines: Iterable[str]) -> Iterator[str]:
    """A router that did not hear that Redis took its entries hands them over again; blank lines keep the numbering."""
    seen: set[int] = set()
    for text in lines:
        key = hash(text.strip())
        yield "\n" if key in seen else text
        seen.add(key)


def _request(row: dict[str, Any], line: int, numbers: dict[bytes, int]) -> TraceRequest | None:
    """None when it is not to be played; BadTrace all the same when it is no entry."""
    fields.integer(row, line, "schema", SCHEMA, SCHEMA)
    session = _session(row, line)
    tokens = fields.integer(row, line, "input_tokens", 0)
    output = None if row.get("output_tokens") is None else fields.integer(row, line, "output_tokens", 0)
    block_tokens = fields.integer(row, line, "block_tokens", 1)
    hashes = _hashes(row, line)
    measured = _measured(row, line)
    if fields.present(row, line, "outcome") != "ok" or not output or not tokens:
        return None
    ids = [numbers.setdefault(block, len(numbers)) for block in hashes]
    return TraceRequest(
        index=0,
        at_s=measured.at,
        session=session,
        input_tokens=tokens,
        output_tokens=output,
        blocks=fields.runs_of(ids),
        block_tokens=block_tokens,
        think_s=0.0,
        measured=measured,
    )


def _measured(row: dict[str, Any], line: int) -> MeasuredLatency:
    """Earlier routers wrote neither the version nor the times."""
    return MeasuredLatency(
        at=_at(row, line),
        pool=fields.text(row, line, "pool"),
        model=fields.text(row, line, "model"),
        policy=fields.text(row, line, "policy"),
        version=fields.integer({"version": 0, **row}, line, "version", 0, fields.MAX_NUMBER),
        ttft_ms=fields.milliseconds(row, line, "ttft_ms"),
        tpot_ms=fields.milliseconds(row, line, "tpot_ms"),
    )


def _at(row: dict[str, Any], line: int) -> float:
    value = fields.present(row, line, "at")
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= MAX_AT_S:
        raise BadTrace(line, "at", value, f"Unix seconds from 0 to {MAX_AT_S:,.0f}")
    return float(value)


def _session(row: dict[str, Any], line: int) -> str:
    name = fields.present(row, line, "session")
    # It travels in a header.
    if not isinstance(name, str) or len(name) > 100 or not name.isascii() or not (name.isprintable() or not name):
        raise BadTrace(line, "session", name, "up to 100 printable ASCII characters")
    return name


def _hashes(row: dict[str, Any], line: int) -> list[bytes]:
    text = fields.present(row, line, "blocks")
    allowed = f"base64 of {HASH_BYTES} bytes for each block"
    try:
        raw = b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise BadTrace(line, "blocks", text, allowed) from None
    if len(raw) % HASH_BYTES:
        raise BadTrace(line, "blocks", text, allowed)
    return [raw[i : i + HASH_BYTES] for i in range(0, len(raw), HASH_BYTES)]
