"""The conversation trace of Mooncake (FAST '25, Apache-2.0): the file itself where it is present, otherwise a
similar generated one."""

import math
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.types import TraceRequest

BLOCK_TOKENS = 512
REQUESTS, DURATION_S = 12_031, 3_540.0
FOLLOWS = 0.39  # share of requests that continue with an earlier one
LONGEST = 126_000  # tokens


def conversation_requests(seed: int = 1) -> list[TraceRequest]:
    """Return the requests by arrival, from a file in the folder WEIR_TRACE_DIR."""
    folder = os.environ.get("WEIR_TRACE_DIR")
    if folder is None:
        return likeness(seed)
    return list(registry.read((Path(folder) / "conversation_trace.jsonl").read_bytes(), seed).requests)


def likeness(seed: int) -> list[TraceRequest]:
    """Generate requests with the lengths, the gaps between turns and the shared first block of the trace, drawn from
    distributions with its quantiles."""
    draw = random.Random(seed)
    begun = round(REQUESTS * (1 - FOLLOWS) * 1.04)  # some turns would come after the end
    turns = [turn for number in range(begun) for turn in _conversation(draw, number)]
    turns.sort(key=lambda request: request.at_s)
    return [replace(turn, index=index) for index, turn in enumerate(turns) if turn.at_s < DURATION_S]


def _conversation(draw: random.Random, number: int) -> Iterator[TraceRequest]:
    at, tokens = draw.uniform(0.0, DURATION_S), round(draw.lognormvariate(math.log(5_500), 1.25)) + BLOCK_TOKENS
    own = (number + 1) << 16
    while tokens < LONGEST:
        output = min(2_000, 1 + round(draw.gammavariate(1.9, 180)))
        blocks = range(0, 1), range(own, own + -(-tokens // BLOCK_TOKENS) - 1)
        yield TraceRequest(0, at, "", tokens, output, blocks, BLOCK_TOKENS, 0.0)
        if draw.random() >= FOLLOWS:
            return
        at += draw.lognormvariate(math.log(123), 1.06)
        tokens += output + round(draw.lognormvariate(math.log(300), 1.2))
