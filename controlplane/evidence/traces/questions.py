"""Generates questions about documents, one per second: the loads of Tutti's page. `leval` and `loogle` have the hit
rates that the publication measured with them, and assumed lengths. `leval` has the 3K to 200K stated by a review,
`loogle-100k` the more than 100K stated there; `leval-documents` and `loogle-documents` have the documents of the
benchmarks, as counted by their authors.
"""

import math

from controlplane.evidence.traces.types import LoadedTrace, TraceRequest
from fleet.systems.tiers.benchmarks import BENCHMARKS
from fleet.systems.tiers.load import LEVAL, LOOGLE, LOOGLE_LONG, QuestionLoad, gaps

BLOCK_TOKENS = 64
REQUESTS = 2_000
PER_S = 1.0
ANSWER_TOKENS = 100
LOADS: dict[str, QuestionLoad] = {"leval": LEVAL, "loogle": LOOGLE, "loogle-100k": LOOGLE_LONG, **BENCHMARKS}


def generate(load: QuestionLoad, seed: int = 1, requests: int = REQUESTS) -> LoadedTrace:
    asked = load.asked(seed, requests)
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
