"""Clients in a closed loop: each sends its next prompt when its answer has ended, as TensorRT-LLM's scripts measure.

With few context GPUs, clients wait for them, fewer answers are written at a time, and each is written faster.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from statistics import fmean, median

from fleet.engine.dwdp.phase import Phase
from fleet.systems.dwdp.pareto import generation
from fleet.systems.dwdp.serving import ContextServer, Queues, dep_server, dwdp_server

ROUNDS = 6  # answers of each client
LEAST_ANSWER = 0.8  # shortest over longest answer, as SemiAnalysis sends them
MOST_POOLS, MOST_SERVERS = 6, 128  # pools of each mode that are played, context servers of the largest


@dataclass(frozen=True, slots=True)
class Loop:
    clients: int
    prompt_tokens: float  # mean
    output_tokens: float  # mean
    generation_gpus: int  # one server


@dataclass(frozen=True, slots=True)
class LoopPoint:
    context_gpus: int
    ttft_s: float  # median
    tokens_per_user: float  # output tokens/s while an answer is written, mean
    tokens_per_gpu: float  # output tokens/s, context and generation GPUs together


class _Clients:
    def __init__(self, queues: Queues, step_s: Callable[[int], float], room: int, weight: float) -> None:
        self._queues, self._step_s, self._room, self._weight = queues, step_s, room, weight
        self._draw = random.Random("answers")  # noqa: S311 - a model, no secret
        self._now = self._written = 0.0  # tokens that an answer begun at the start would have by now
        self._ends: list[tuple[float, float, float]] = []  # heap: `_written` at the end and tokens, time of the first
        self._ready: deque[float] = deque()  # arrival times of computed prompts
        self.ttft_s: list[float] = []
        self.token_s: list[float] = []  # time of a token, by answer
        self.tokens = 0.0

    def answer(self, clients: int, mean_tokens: float) -> float:
        """Return the time until all answers have ended."""
        left = clients * (ROUNDS - 1)
        for _ in range(clients):
            self._queues.join(0.0)
        while len(self.token_s) < clients * ROUNDS:
            token_s = self._step_s(max(1, round(len(self._ends) * self._weight)))
            ends = self._now + (self._ends[0][0] - self._written) * token_s if self._ends else math.inf
            now = min(ends, self._queues.next_end)
            self._written, self._now = self._written + (now - self._now) / token_s, now
            if ends <= self._queues.next_end:
                _, tokens, began = heappop(self._ends)
                self.token_s.append((now - began) / tokens)
                if left:
                    left -= 1
                    self._queues.join(now)
            self._ready += self._queues.end_iterations(now)
            self._begin(mean_tokens)
        return self._now

    def _begin(self, mean_tokens: float) -> None:
        while self._ready and len(self._ends) * self._weight < self._room:
            self.ttft_s.append(self._now - self._ready.popleft())
            longest = 2 * mean_tokens / (1 + LEAST_ANSWER)
            tokens = self._draw.uniform(LEAST_ANSWER, 1) * longest
            self.tokens += tokens
            heappush(self._ends, (self._written + tokens, tokens, self._now))


def point(phase: Phase, server: ContextServer, servers: int, loop: Loop, kv_bytes: float) -> LoopPoint:
    """Simulate the clients. Raise TooLarge if the weights do not fit the generation GPUs."""
    law, room = generation(phase, loop.generation_gpus, kv_bytes)
    each = loop.prompt_tokens + loop.output_tokens / 2

    @cache
    def step_s(answers: int) -> float:
        return law.step_s(answers, 0.0, round(answers * each), answers)

    clients = max(1, round(loop.clients / server.lump))
    played = _Clients(
        Queues(server, servers), step_s, int(room / (loop.prompt_tokens + loop.output_tokens)), server.lump
    )
    duration = played.answer(clients, loop.output_tokens)
    gpus = servers * server.gpus
    per_gpu = played.tokens * server.lump / duration / (gpus + loop.generation_gpus)
    return LoopPoint(gpus, median(played.ttft_s), 1 / fmean(played.token_s), per_gpu)


def pools(phase: Phase, loop: Loop, kv_bytes: float) -> tuple[list[LoopPoint], list[LoopPoint]]:
    """Return the points of DEP and of DWDP, beginning with half of the context GPUs that these clients can keep busy;
    none if the KV of an answer does not fit. Raise TooLarge."""
    return (
        [*_pools(phase, dep_server(phase), phase.dep_ranks, phase.tokens_per_s(phase.dep_ms), loop, kv_bytes)],
        [*_pools(phase, dwdp_server(phase), phase.layout.ranks, phase.tokens_per_s(phase.dwdp_ms), loop, kv_bytes)],
    )


def _pools(
    phase: Phase, server: ContextServer, ranks: int, gpu_tokens_per_s: float, loop: Loop, kv_bytes: float
) -> Iterator[LoopPoint]:
    law, room = generation(phase, loop.generation_gpus, kv_bytes)
    if room < loop.prompt_tokens + loop.output_tokens:
        return
    context = round(loop.clients * (loop.prompt_tokens + loop.output_tokens / 2))
    most_per_s = loop.clients / loop.output_tokens / law.step_s(loop.clients, 0.0, context, loop.clients)
    busy = math.ceil(most_per_s * loop.prompt_tokens / gpu_tokens_per_s / ranks)
    most = min(busy, max(1, MOST_SERVERS * server.gpus // ranks))
    for groups in range(max(1, most // 2), most + 1, math.ceil(most / 2 / MOST_POOLS)):
        yield point(phase, server, groups * ranks // server.gpus, loop, kv_bytes)


def best(points: list[LoopPoint]) -> LoopPoint:
    return max(points, key=lambda one: one.tokens_per_gpu)
