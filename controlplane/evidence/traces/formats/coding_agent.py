"""Sessions of coding agents: JSONL with one request per line, whose prefix is given as runs of its session's 64-token
blocks.
Times are per session; sessions start SESSION_GAP_S apart on average, drawn with the seed, in the order of the file.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from controlplane.evidence.traces.formats import fields
from controlplane.evidence.traces.formats.columns import Columns
from controlplane.evidence.traces.types import LoadedTrace, TraceRequest

BLOCK_TOKENS = 64
SESSION_GAP_S = 10.0
SESSION_BLOCKS = 1 << 32  # distance between the ids of two sessions, because ids are local to a session


def read(lines: Iterable[str], seed: int) -> LoadedTrace:
    draw = random.Random(seed)  # noqa: S311 - arrivals, not secrets
    sessions: dict[str, tuple[int, float]] = {}  # number and start by session
    clock = 0.0
    requests, bounds, columns = [], fields.RunBounds(), Columns()
    for row in fields.json_rows(lines, columns):
        name = row.session(1)
        if name not in sessions:
            sessions[name] = len(sessions), clock
            clock += draw.expovariate(1 / SESSION_GAP_S)
        requests.append(_request(row, name, *sessions[name]))
        bounds.check(row, "runs", requests[-1].blocks)
    requests.sort(key=lambda request: request.at_s)
    made = tuple(replace(r, index=i) for i, r in enumerate(requests))
    return LoadedTrace("coding_agent", made, "closed_loop", columns.ignored())


def _request(row: fields.TraceLine, session: str, number: int, start_s: float) -> TraceRequest:
    tokens = row.integer("input_length", 1)
    blocks = tuple(_runs(row, number * SESSION_BLOCKS))
    row.check_blocks("runs", sum(map(len, blocks)), tokens, BLOCK_TOKENS)
    return TraceRequest(
        index=0,
        at_s=start_s + row.seconds("t"),
        session=session,
        input_tokens=tokens,
        output_tokens=max(1, row.integer("output_length", 0)),
        blocks=blocks,
        block_tokens=BLOCK_TOKENS,
        think_s=0.0 if row.values.get("think_time") is None else row.seconds("think_time"),
    )


def _runs(row: fields.TraceLine, base: int) -> Iterator[range]:
    runs, allowed = row.present("runs"), "a list of [first block, count]"
    if not isinstance(runs, list):
        raise row.refused("runs", runs, allowed)
    for run in runs:
        pair = row.integers("runs", run, 0, SESSION_BLOCKS // 2)
        if len(pair) != 2:
            raise row.refused("runs", run, allowed)
        yield range(base + pair[0], base + pair[0] + pair[1])
