"""Generate sessions of kinds that no strategy was designed with, for bench.unseen."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from controlplane.evidence.traces.types import TraceRequest

BLOCK_TOKENS = 64
SESSION_IDS = 1 << 24  # block ids that one session may use

Spread = tuple[float, float]  # median, and deviation of the log


@dataclass(frozen=True, slots=True)
class SessionKind:
    every_s: float  # mean time between the starts of sessions
    systems: tuple[int, ...]  # tokens of the system prompts; each session begins with one
    opening: Spread  # tokens of a first message
    read_share: float  # share of first messages that include something large
    read: tuple[int, int]  # tokens of that large part
    added: Spread  # tokens that a turn adds to the previous answer
    late_read_share: float
    answer: Spread  # tokens of an answer
    think_s: Spread
    turns: int  # mean number of turns
    most: int = 120_000  # tokens of the longest prompt


KINDS = {
    "heavy-tailed": SessionKind(
        2.0, (2_000, 4_000), (2_500, 1.3), 0.15, (20_000, 90_000), (800, 1.5), 0.05, (250, 1.2), (8, 1.2), 9
    ),
    "long agents": SessionKind(
        4.0, (12_000, 18_000), (3_000, 0.7), 0.5, (10_000, 60_000), (1_500, 1.1), 0.08, (180, 1.0), (3, 0.7), 30
    ),
    "quick agents": SessionKind(
        3.0, (6_000, 9_000), (2_500, 0.8), 0.3, (8_000, 24_000), (900, 1.2), 0.04, (120, 0.9), (1.5, 0.6), 25
    ),
    "retrieval": SessionKind(
        1.2, (800,), (9_000, 0.5), 0.1, (6_500, 34_000), (4_000, 0.6), 0.02, (200, 0.6), (20, 0.8), 4
    ),
}


def generate(name: str, seed: int, duration_s: float) -> tuple[TraceRequest, ...]:
    """Return the requests of a closed loop that begin within the time, if each answer takes four seconds."""
    kind, draw = KINDS[name], random.Random(f"{name}:{seed}")
    requests, start = list[TraceRequest](), 0.0
    for number in count():
        if start >= duration_s:
            break
        requests += _session(kind, draw, f"{name}-{seed}", number, start)
        start += draw.expovariate(1 / kind.every_s)
    requests.sort(key=lambda one: (one.at_s, one.session))
    return tuple(replace(one, index=at) for at, one in enumerate(requests) if one.at_s < duration_s)


def _session(kind: SessionKind, draw: random.Random, trace: str, number: int, start_s: float) -> Iterator[TraceRequest]:
    system, at_s = draw.randrange(len(kind.systems)), start_s
    reads = draw.random() < kind.read_share
    tokens = kind.systems[system] + (draw.randint(*kind.read) if reads else 20 + _drawn(draw, kind.opening))
    for turn in range(1 + int(draw.expovariate(1 / (kind.turns - 1)))):
        if tokens > kind.most:
            return
        answer = 4 + min(2_000, _drawn(draw, kind.answer))
        think_s = min(120.0, draw.lognormvariate(math.log(kind.think_s[0]), kind.think_s[1])) if turn else 0.0
        at_s += think_s
        blocks = _blocks(kind, system, number, tokens)
        yield TraceRequest(0, at_s, f"{trace}-{number}", tokens, answer, blocks, BLOCK_TOKENS, think_s)
        at_s += 4.0
        reads = draw.random() < kind.late_read_share
        tokens += answer + (draw.randint(*kind.read) if reads else 10 + min(12_000, _drawn(draw, kind.added)))


def _drawn(draw: random.Random, spread: Spread) -> int:
    median, deviation = spread
    return int(draw.lognormvariate(math.log(median), deviation))


def _blocks(kind: SessionKind, system: int, number: int, tokens: int) -> tuple[range, ...]:
    shared, first = kind.systems[system] // BLOCK_TOKENS, (number + 1) * SESSION_IDS
    begin = (system + 1) * 1_000
    return range(begin, begin + shared), range(first, first + math.ceil(tokens / BLOCK_TOKENS) - shared)
