"""Mooncake's traces: JSONL with arrival in ms, lengths, ids of 512-token prefix blocks, and a session if it is known.

The public ones give arrivals in buckets of three seconds; requests are spread inside their bucket, by the seed.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from controlplane.evidence.traces.formats import fields
from controlplane.evidence.traces.formats.columns import Columns
from controlplane.evidence.traces.types import LoadedTrace, TraceRequest

BLOCK_TOKENS = 512
BUCKET_S = 3.0


def detects(head: str) -> bool:
    return '"hash_ids"' in head and '"timestamp"' in head


def read(lines: Iterable[str], seed: int) -> LoadedTrace:
    columns = Columns()
    requests = sorted(_rows(lines, columns), key=lambda request: request.at_s)
    if is_bucketed(requests):
        requests = list(_spread(requests, seed))
    start = requests[0].at_s if requests else 0.0
    made = tuple(replace(r, index=i, at_s=r.at_s - start) for i, r in enumerate(requests))
    return LoadedTrace("mooncake", made, "timestamps", columns.ignored())


def _rows(lines: Iterable[str], columns: Columns) -> Iterator[TraceRequest]:
    bounds = fields.RunBounds()
    for row in fields.json_rows(lines, columns):
        tokens = row.integer("input_length", 1)
        ids = row.integers("hash_ids", row.present("hash_ids"), 0, fields.MAX_BLOCK)
        row.check_blocks("hash_ids", len(ids), tokens, BLOCK_TOKENS)
        yield TraceRequest(
            index=0,
            at_s=row.seconds("timestamp", per_second=1000),
            session=_session(row),
            input_tokens=tokens,
            output_tokens=max(1, row.integer("output_length", 0)),
            blocks=bounds.check(row, "hash_ids", fields.runs_of(ids)),
            block_tokens=BLOCK_TOKENS,
            think_s=0.0,
        )


def _session(row: fields.Row) -> str:
    """Some tools write it as a number."""
    name = row.values.get("session_id")
    if name is None:
        return ""
    if type(name) is int:
        return str(row.integer("session_id", 0, fields.MAX_BLOCK))
    return row.session(0, "session_id")


def is_bucketed(requests: list[TraceRequest]) -> bool:
    """Whether most arrivals share their moment with another: a clock that only shows buckets."""
    return 2 * len({request.at_s for request in requests}) <= len(requests)


def _spread(requests: list[TraceRequest], seed: int) -> Iterator[TraceRequest]:
    """Arrivals drawn inside each bucket, which lasts until the next one, at most BUCKET_S; their order is kept."""
    draw = random.Random(seed)  # noqa: S311 - arrivals, not secrets
    buckets = [(at, list(group)) for at, group in groupby(requests, key=lambda request: request.at_s)]
    ends = [at for at, _ in buckets[1:]] + [float("inf")]
    for (at, group), end in zip(buckets, ends, strict=True):
        width = min(BUCKET_S, end - at)
        offsets = sorted(draw.random() * width for _ in group)
        for request, offset in zip(group, offsets, strict=True):
            yield replace(request, at_s=at + offset)
