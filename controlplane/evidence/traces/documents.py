"""Generates questions about long documents from a seed: many readers share a collection of reports, and each returns to
the same reports after minutes. Returning prompts do not fit into the GPUs' memory, so tiers below it make a difference.
The lengths are those of contracts, reports and small books (LEval and LooGLE have 3,000 to 200,000 tokens); they are
not derived from recorded traffic.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from controlplane.evidence.traces.types import LoadedTrace, TraceRequest

BLOCK_TOKENS = 64
DOCUMENTS = 300
SHORTEST, LONGEST = 8_000, 100_000  # tokens
MEDIAN_TOKENS, SIGMA = 32_000, 0.6  # parameters of the log-normal
QUESTION_TOKENS = (30, 200)
MEAN_QUESTIONS = 4
RETURN_S, LATEST_RETURN_S = 150.0, 900.0  # median and longest time until a reader's next question
DOCUMENT_IDS = 1 << 12  # block ids per document
SESSION_IDS = 1 << 10


def generate(seed: int = 1, duration_s: float = 2_400.0, every_s: float = 4.0, answer_s: float = 4.0) -> LoadedTrace:
    """Generate readers that arrive every `every_s` seconds on average; arrivals assume that an answer takes
    `answer_s`."""
    draw = random.Random(f"documents:{seed}")  # noqa: S311 - traffic, not secrets
    lengths = [_length(draw) for _ in range(DOCUMENTS)]
    requests: list[TraceRequest] = []
    start = 0.0
    for number in count():
        if start >= duration_s:
            break
        requests += _reader(seed, number, lengths, start, answer_s)
        start += draw.expovariate(1 / every_s)
    requests.sort(key=lambda request: (request.at_s, request.session))
    within = (request for request in requests if request.at_s < duration_s)
    return LoadedTrace("generated", tuple(replace(r, index=i) for i, r in enumerate(within)), "closed_loop")


def _length(draw: random.Random) -> int:
    """Draw a length in whole blocks, because readers continue the document differently."""
    tokens = draw.lognormvariate(math.log(MEDIAN_TOKENS), SIGMA)
    return int(min(max(tokens, SHORTEST), LONGEST)) // BLOCK_TOKENS * BLOCK_TOKENS


def _reader(seed: int, number: int, lengths: list[int], start_s: float, answer_s: float) -> Iterator[TraceRequest]:
    draw = random.Random(f"documents:{seed}:{number}")  # noqa: S311 - traffic, not secrets
    document = draw.randrange(len(lengths))
    shared = range(document * DOCUMENT_IDS, document * DOCUMENT_IDS + lengths[document] // BLOCK_TOKENS)
    own, at, first = 0, start_s, (len(lengths) * DOCUMENT_IDS) + number * SESSION_IDS
    for turn in range(1 + int(draw.expovariate(1 / (MEAN_QUESTIONS - 1)))):
        think = min(LATEST_RETURN_S, draw.lognormvariate(math.log(RETURN_S), 0.7)) if turn else 0.0
        at += think
        own += draw.randint(*QUESTION_TOKENS)
        blocks = (shared, range(first, first + math.ceil(own / BLOCK_TOKENS)))
        output = max(16, min(1_000, int(draw.lognormvariate(math.log(180), 0.7))))
        yield TraceRequest(
            0, at, f"reader-{seed}-{number}", lengths[document] + own, output, blocks, BLOCK_TOKENS, think
        )
        own += output
        at += answer_s
