"""Generates agentic sessions from a seed: a few shared system prompts, turns that extend the prompt, occasional large
reads.

The shape follows public coding-agent and conversation traces: outputs of a few hundred tokens with a long tail, think
times of seconds to a minute, a prompt that grows with each turn, one request in ten with 20,000 or more new tokens.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count

from controlplane.evidence.traces import documents, prompts_8k, questions
from controlplane.evidence.traces.types import LoadedTrace, TraceRequest

BLOCK_TOKENS = 64
SYSTEM_PROMPTS = (1_536, 2_560, 3_584, 6_144)  # tokens
SESSION_IDS = 1 << 24  # block ids that one session may use
MAX_INPUT_TOKENS = 100_000  # longest prompt; a session ends before it would exceed this
MAX_OUTPUT_TOKENS = 2_000
OPENINGS = ("read", "files", "question")  # used in turn, so that the first three sessions contain every class
READ_TOKENS = (20_500, 34_000)  # a repository is read: heavy
FILES_TOKENS = (6_500, 14_000)  # a few files: medium in a first turn
MEAN_TURNS = 10
LATE_READ_SHARE = 0.05
# Statistics that the design of adaptive prefill offload states about its trace: 20 % heavy, 44 % medium, 36 % warm
# requests; 22 points of the warm ones have more than 90 % cached and 1,300 new tokens, the others 17,700 on average.
DESIGN_STARTS, DESIGN_HEAVY, DESIGN_CACHED = 0.64, 0.20 / 0.64, 22 / 36
# The design states neither the answers, whose reasoning is omitted from the next prompt, nor how often a session
# starts. Both were chosen with knowledge of the author's TTFT for combined engines and for static splits.
DESIGN_ANSWER, DESIGN_MOST, DESIGN_EVERY_S = 2_700, 8_000, 2.0


@dataclass(frozen=True, slots=True)
class Turn:
    """A request of a session."""

    input_tokens: int
    output_tokens: int
    blocks: tuple[range, ...]
    think_s: float  # time before this turn


def session_turns(seed: int, number: int) -> Iterator[Turn]:
    """Yield the turns of session `number`; the same seed and number always produce the same session."""
    draw = random.Random(f"{seed}:{number}")  # noqa: S311 - traffic, not secrets
    system = draw.randrange(len(SYSTEM_PROMPTS))
    tokens = SYSTEM_PROMPTS[system] + opening_tokens(draw, OPENINGS[number % len(OPENINGS)])
    for turn in range(1 + int(draw.expovariate(1 / (MEAN_TURNS - 1)))):
        if tokens > MAX_INPUT_TOKENS:
            return
        output = output_tokens(draw)
        think = min(60.0, draw.lognormvariate(math.log(7), 0.8)) if turn else 0.0
        yield Turn(tokens, output, blocks_of(number, system, tokens), think)
        tokens += output + appended_tokens(draw)


def opening_tokens(draw: random.Random, kind: str) -> int:
    if kind == "read":
        return draw.randint(*READ_TOKENS)
    if kind == "files":
        return draw.randint(*FILES_TOKENS)
    return min(4_000, int(draw.lognormvariate(math.log(800), 0.8)) + 20)


def appended_tokens(draw: random.Random) -> int:
    """Draw the tokens that a turn adds after the previous answer: the output of a tool or, rarely, another large
    read."""
    if draw.random() < LATE_READ_SHARE:
        return draw.randint(*READ_TOKENS)
    return min(12_000, int(draw.lognormvariate(math.log(700), 1.0)) + 10)


def output_tokens(draw: random.Random) -> int:
    """Draw an output length: median 230, mean about 340."""
    return max(4, min(MAX_OUTPUT_TOKENS, int(draw.lognormvariate(math.log(230), 0.9))))


def design_turns(seed: int, number: int) -> Iterator[Turn]:
    """Yield the turns of a session with the statistics that the adaptive-prefill-offload design states."""
    draw = random.Random(f"design {seed}:{number}")  # noqa: S311 - traffic, not secrets
    tokens = draw.randint(20_000, 51_400) if draw.random() < DESIGN_HEAVY else draw.randint(5_000, 14_000)
    think = 0.0
    while tokens <= MAX_INPUT_TOKENS:
        output = max(4, min(DESIGN_MOST, int(draw.lognormvariate(math.log(DESIGN_ANSWER), 0.9))))
        first = (number + 1) * SESSION_IDS
        yield Turn(tokens, output, (range(first, first + math.ceil(tokens / BLOCK_TOKENS)),), think)
        if draw.random() < DESIGN_STARTS:
            return
        tokens += (
            min(tokens // 11, draw.randint(300, 2_300)) if draw.random() < DESIGN_CACHED else draw.randint(2_300, 4_800)
        )
        think = min(60.0, draw.lognormvariate(math.log(7), 0.8))


def blocks_of(number: int, system: int, tokens: int) -> tuple[range, ...]:
    """Return the shared blocks of the system prompt, then blocks of the session."""
    shared = SYSTEM_PROMPTS[system] // BLOCK_TOKENS
    first = (system + 1) * 1_000
    first_of_session = (number + 1) * SESSION_IDS
    return range(first, first + shared), range(
        first_of_session, first_of_session + math.ceil(tokens / BLOCK_TOKENS) - shared
    )


def generate(
    seed: int = 1,
    duration_s: float = 1_200.0,
    every_s: float = 6.0,
    answer_s: float = 4.0,
    turns: Callable[[int, int], Iterator[Turn]] = session_turns,
) -> LoadedTrace:
    """Generate sessions that start every `every_s` seconds on average; arrivals assume that an answer takes
    `answer_s`."""
    draw = random.Random(seed)  # noqa: S311 - traffic, not secrets
    requests: list[TraceRequest] = []
    start = 0.0
    for number in count():
        if start >= duration_s:
            break
        requests += session_requests(f"agent-{seed}-{number}", turns(seed, number), start, answer_s)
        start += draw.expovariate(1 / every_s)
    requests.sort(key=lambda request: (request.at_s, request.session))
    within = (request for request in requests if request.at_s < duration_s)
    return LoadedTrace("generated", tuple(replace(r, index=i) for i, r in enumerate(within)), "closed_loop")


def design(seed: int = 1, duration_s: float = 1_200.0) -> LoadedTrace:
    return generate(seed, duration_s, DESIGN_EVERY_S, answer_s=30.0, turns=design_turns)


def session_requests(name: str, turns: Iterable[Turn], start_s: float, answer_s: float) -> Iterator[TraceRequest]:
    at = start_s
    for turn in turns:
        at += turn.think_s
        yield TraceRequest(
            0,
            at,
            name,
            turn.input_tokens,
            turn.output_tokens,
            turn.blocks,
            BLOCK_TOKENS,
            turn.think_s,
        )
        at += answer_s


@cache
def agentic_demo() -> LoadedTrace:
    return generate(seed=1)


@cache
def agentic_design() -> LoadedTrace:
    return design(seed=1)


@cache
def documents_reread() -> LoadedTrace:
    return documents.generate(seed=1)


@cache
def prompts_of_8k() -> LoadedTrace:
    return prompts_8k.generate(seed=1)


@cache
def _asked(name: str) -> LoadedTrace:
    return questions.generate(questions.LOADS[name])


BUILT_IN: dict[str, Callable[[], LoadedTrace]] = {
    "agentic-demo": agentic_demo,
    "agentic-design": agentic_design,
    "documents-reread": documents_reread,
    "prompts-8k": prompts_of_8k,
    **{name: partial(_asked, name) for name in questions.LOADS},
}
