"""Generates long prompts without sessions at random intervals, ten a second: the load of DWDP's publication (8K in, 1K
out)."""

import random

from controlplane.evidence.traces.types import LoadedTrace, TraceRequest

BLOCK_TOKENS = 64
PROMPT_TOKENS = (6_554, 8_192)  # 0.8 to 1 of 8K
ANSWER_TOKENS = 1_000
REQUESTS = 2_000
PER_S = 10.0
MEAN_TOKENS = sum(PROMPT_TOKENS) / 2


def generate(seed: int = 1, requests: int = REQUESTS) -> LoadedTrace:
    draw, at, made = random.Random(f"prompts:{seed}"), 0.0, []  # noqa: S311 - traffic, not secrets
    first = 0
    for number in range(requests):
        tokens = draw.randint(*PROMPT_TOKENS)
        blocks = -(-tokens // BLOCK_TOKENS)
        made.append(
            TraceRequest(number, at, "", tokens, ANSWER_TOKENS, (range(first, first + blocks),), BLOCK_TOKENS, 0.0)
        )
        first += blocks
        at += draw.expovariate(PER_S)
    return LoadedTrace("generated", tuple(made), "timestamps")
