"""Sessions of coding agents: JSONL with one request per line, its prefix as runs of 64-token blocks of its session.

Times are per session; sessions start SESSION_GAP_S apart on average, by the seed, in the order of the file.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from controlplane.traces.formats import fields
from controlplane.traces.types import BadTrace, LoadedTrace, TraceRequest

BLOCK_TOKENS = 64
SESSION_GAP_S = 10.0
SESSION_BLOCKS = 1 << 32  # ids are local to the session: this far apart they cannot meet


def detects(head: str) -> bool:
    return '"runs"' in head and '"session"' in head


def read(lines: Iterable[str], seed: int) -> LoadedTrace:
    draw = random.Random(seed)  # noqa: S311 - arrivals, not secrets
    sessions: dict[str, tuple[int, float]] = {}  # number and start
    clock = 0.0
    requests, bounds = [], fields.RunBounds()
    for line, row in fields.json_lines(lines):
        name = _name(row, line)
        if name not in sessions:
            sessions[name] = len(sessions), clock
            clock += draw.expovariate(1 / SESSION_GAP_S)
        requests.append(_request(row, line, name, *sessions[name]))
        bounds.check(line, "runs", requests[-1].blocks)
    requests.sort(key=lambda request: request.at_s)
    return LoadedTrace("coding_agent", tuple(replace(r, index=i) for i, r in enumerate(requests)), "closed_loop")


def _name(row: dict[str, Any], line: int) -> str:
    name = fields.present(row, line, "session")
    # It travels in a header.
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isascii() or not name.isprintable():
        raise BadTrace(line, "session", name, "1 to 100 printable ASCII characters")
    return name


def _request(row: dict[str, Any], line: int, session: str, number: int, start_s: float) -> TraceRequest:
    tokens = fields.integer(row, line, "input_length", 1)
    blocks = tuple(_runs(row, line, number * SESSION_BLOCKS))
    fields.check_blocks(line, "runs", sum(map(len, blocks)), tokens, BLOCK_TOKENS)
    return TraceRequest(
        index=0,
        at_s=start_s + fields.seconds(row, line, "t"),
        session=session,
        input_tokens=tokens,
        output_tokens=max(1, fields.integer(row, line, "output_length", 0)),
        blocks=blocks,
        block_tokens=BLOCK_TOKENS,
        think_s=fields.seconds(row, line, "think_time", optional=True),
    )


def _runs(row: dict[str, Any], line: int, base: int) -> Iterator[range]:
    runs = fields.present(row, line, "runs")
    if not isinstance(runs, list):
        raise BadTrace(line, "runs", runs, "a list of [first block, count]")
    for run in runs:
        pair = fields.integers(run, line, "runs", 0, SESSION_BLOCKS // 2)
        if len(pair) != 2:
            raise BadTrace(line, "runs", run, "a list of [first block, count]")
        yield range(base + pair[0], base + pair[0] + pair[1])
