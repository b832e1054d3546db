"""Generates questions about documents with the published statistics of LEval and LooGLE, one a second: the load of
Tutti's page.

Lengths are assumed, as the publication names none; hits are the published ones.
"""

import math

from controlplane.evidence.traces.types import LoadedTrace, TraceRequest
from fleet.systems.tiers.load import LEVAL, LOOGLE, TierLoad, gaps, questions

BLOCK_TOKENS = 64
REQUESTS = 2_000
PER_S = 1.0
ANSWER_TOKENS = 100
LOADS = {"leval": LEVAL, "loogle": LOOGLE}


def generate(load: TierLoad, seed: int = 1, requests: int = REQUESTS) -> LoadedTrace:
    asked = questions(load, seed, requests)
    of_document = math.ceil(load.longest / BLOCK_TOKENS)  # block ids per document
    own, at, made = (1 + max(one.document for one in asked)) * of_document, 0.0, []
    for number, (question, gap) in enumerate(zip(asked, gaps(seed, requests), strict=True)):
        whole, rest = divmod(question.tokens, BLOCK_TOKENS)
        first = question.document * of_document
        ends = own + math.ceil((rest + load.question_tokens) / BLOCK_TOKENS)
        blocks = (range(first, first + whole), range(own, ends))
        tokens = question.tokens + load.question_tokens
        at += gap / PER_S
        made.append(TraceRequest(number, at, "", tokens, ANSWER_TOKENS, blocks, BLOCK_TOKENS, 0.0))
        own = ends
    return LoadedTrace("generated", tuple(made), "timestamps")
