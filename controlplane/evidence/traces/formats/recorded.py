"""Traffic recorded by routers (docs/redis.md): JSONL, one finished request per line. Only answered requests with a
known number of output tokens are played. Clients' think times are not recorded, so requests arrive by the clock.
"""

from base64 import b64decode
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import median_low

from controlplane.evidence.traces.formats import fields
from controlplane.evidence.traces.formats.columns import Columns
from controlplane.evidence.traces.types import BadTrace, LoadedTrace, MeasuredLatency, TraceRequest
from router.contract.redis.api_keys import BAND_MAX

SCHEMA = 1  # schema of a TrafficEntry
HASH_BYTES = 8
MAX_AT_S = 1e11  # Unix


def read(lines: Iterable[str], seed: int) -> LoadedTrace:
    """Read a recording. Block ids are numbered in order of appearance; all requests get blocks of their median size."""
    numbers: dict[bytes, int] = {}
    read_lines = 0
    requests, bounds, columns = [], fields.RunBounds(), Columns()
    for row in fields.json_rows(_once(lines), columns):
        read_lines += 1
        request = _request(row, numbers)
        if request is not None:
            bounds.check(row, "blocks", request.blocks)
            requests.append(request)
    if not requests:
        allowed = "at least one request that was answered and whose number of output tokens is known"
        raise BadTrace(0, "outcome", f"none of {read_lines:,} entries", allowed)
    requests.sort(key=lambda request: request.at_s)
    start = requests[0].at_s
    block_tokens = median_low([request.block_tokens for request in requests])
    made = (replace(r, index=i, at_s=r.at_s - start, block_tokens=block_tokens) for i, r in enumerate(requests))
    return LoadedTrace("recorded", tuple(made), "timestamps", columns.ignored(), read_lines - len(requests))


def _once(lines: Iterable[str]) -> Iterator[str]:
    """Yield each entry once, because a router sends entries again if it did not learn that Redis accepted them; blank
    lines keep the line numbers right."""
    seen: set[int] = set()
    for text in lines:
        key = hash(text.strip())
        yield "\n" if key in seen else text
        seen.add(key)


def _request(row: fields.TraceLine, numbers: dict[bytes, int]) -> TraceRequest | None:
    """Return a request; None if it cannot be played. Raise BadTrace if the line is not an entry."""
    row.integer("schema", SCHEMA, SCHEMA)
    session = row.session(0)
    tokens = row.integer("input_tokens", 0)
    output = None if row.values.get("output_tokens") is None else row.integer("output_tokens", 0)
    block_tokens = row.integer("block_tokens", 1)
    hashes = _hashes(row)
    measured = _measured(row)
    if row.present("outcome") != "ok" or not output or not tokens:
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
        band=row.integer("band", -BAND_MAX, BAND_MAX) if "band" in row.values else 0,
        tenant=row.text("tenant") if "tenant" in row.values else "",
    )


def _measured(row: fields.TraceLine) -> MeasuredLatency:
    """Return the measured latency; earlier routers wrote neither the version nor the times."""
    return MeasuredLatency(
        at=row.number("at", MAX_AT_S, "Unix seconds"),
        pool=row.text("pool"),
        model=row.text("model"),
        policy=row.text("policy"),
        version=row.integer("version", 0, fields.MAX_NUMBER) if "version" in row.values else 0,
        ttft_ms=row.milliseconds("ttft_ms"),
        tpot_ms=row.milliseconds("tpot_ms"),
    )


def _hashes(row: fields.TraceLine) -> list[bytes]:
    text = row.present("blocks")
    allowed = f"base64 of {HASH_BYTES} bytes for each block"
    try:
        raw = b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise row.refused("blocks", text, allowed) from None
    if len(raw) % HASH_BYTES:
        raise row.refused("blocks", text, allowed)
    return [raw[i : i + HASH_BYTES] for i in range(0, len(raw), HASH_BYTES)]
