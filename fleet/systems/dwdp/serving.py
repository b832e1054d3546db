"""Prompts at context servers: each iteration of a server computes as many of its waiting prompts as fit.
Prompts arrive at random and go to the server that holds the fewest, as routers would send them. The arrivals determine
how full iterations are: at a low rate, an iteration holds a single prompt, which hides little of DWDP's copy.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush
from statistics import fmean

from fleet.engine.dwdp.phase import Phase, dep_layer_ms
from fleet.engine.dwdp.waiting import waiting_ms

MOST_PROMPTS = 64  # prompts per iteration; more and shorter prompts are combined
MOST_SERVERS = 64  # most simulated servers; with more servers, prompts would not wait less
PLAYED, WARMING = 2_000, 200  # simulated prompts, and those that precede the first one counted


@dataclass(frozen=True, slots=True)
class ContextServer:
    """A server that computes one iteration at a time: a DEP group, or one GPU of a DWDP group."""

    gpus: int
    iteration_s: tuple[float, ...]  # duration by the number of lumps in the iteration, from 1 on
    lump: float = 1.0  # prompts combined into one: above 1 for prompts much shorter than an iteration
    between_s: float = 0.0  # time between iterations


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Mean seconds of a prompt up to its first token."""

    wait_s: float  # wait until its iteration begins
    prefill_s: float  # duration of its iteration


def dwdp_server(phase: Phase) -> ContextServer:
    """Return the server of one GPU."""
    return _server(phase, 1, lambda prompts: _of_prompts(phase, prompts).dwdp_ms)


def dep_server(phase: Phase) -> ContextServer:
    """Return the server of a whole group, whose GPUs share the prompts."""
    return _server(phase, phase.dep_ranks, lambda prompts: _dep_ms(phase, prompts))


def _server(phase: Phase, gpus: int, layer_ms: Callable[[float], float]) -> ContextServer:
    most = max(1, round(phase.tokens / phase.prompts.mean)) * gpus
    steps = min(most, MOST_PROMPTS)
    lump = most / steps
    seconds = (layer_ms(lump * step) * phase.moe.moe_layers / 1e3 for step in range(1, steps + 1))
    return ContextServer(gpus, tuple(seconds), lump, phase.between_ms / 1e3)


def _of_prompts(phase: Phase, prompts: float) -> Phase:
    return replace(phase, max_tokens=max(1, round(prompts * phase.prompts.mean)), filled=1.0)


def _dep_ms(phase: Phase, prompts: float) -> float:
    """Return the duration of a layer of the group; a GPU without a prompt computes only its share of the experts."""
    ranks, mean = phase.dep_ranks, phase.prompts.mean
    busy = min(ranks, max(1, round(prompts)))
    own = [mean * part for part in _dealt(prompts, ranks)]
    pairs = mean * (1 + phase.prompts.cv**2) / 2
    fullest = replace(phase, max_tokens=max(1, round(max(own))), filled=1.0)
    even = replace(phase, max_tokens=max(1, round(prompts * mean / ranks)), filled=1.0).dep_computing
    cv = phase.prompts.cv / max(1.0, prompts / ranks) ** 0.5
    skew = phase.reached.skew_ms_per_token * prompts * mean / ranks / phase.moe.moe_layers
    hot = phase.hot_ms(even.routed)
    wait = waiting_ms(busy, fullest.uneven_ms, cv, math.hypot(skew, hot))
    shares = [(each, each * pairs) for each in own]
    return dep_layer_ms(phase.moe, phase.gpu, phase.reached, shares, [0.0] * ranks, wait)


def _dealt(prompts: float, ranks: int) -> list[float]:
    """Return the prompts of each GPU: whole prompts, distributed as evenly as possible."""
    whole, more = divmod(round(prompts), ranks)
    return [float(whole + (rank < more)) for rank in range(ranks)]


@lru_cache(maxsize=256)
def first_token(server: ContextServer, servers: int, prompts_per_s: float) -> FirstToken:
    """Simulate the wait for the first token. `servers` is their number."""
    played = min(servers, MOST_SERVERS)
    gap_s = server.lump * servers / (prompts_per_s * played)
    draw, now, queues = random.Random("context"), 0.0, Queues(server, played)  # noqa: S311 - no secret
    for _ in range(PLAYED):
        now += draw.expovariate(1.0) * gap_s
        queues.end_iterations(now)
        queues.join(now)
    queues.end_iterations(math.inf)
    return FirstToken(fmean(queues.waits[WARMING:]), fmean(queues.prefills[WARMING:]))


class Queues:
    """One queue for each server."""

    def __init__(self, server: ContextServer, servers: int) -> None:
        self._iteration_s, self._between_s = server.iteration_s, server.between_s
        self._computing: list[list[float]] = [[] for _ in range(servers)]  # arrival times of the prompts
        self._held = [0] * servers  # prompts that wait or are being computed
        self._waiting: list[list[float]] = [[] for _ in range(servers)]  # arrival times of waiting prompts
        self._ends: list[tuple[float, int]] = []  # heap of iterations
        self.waits: list[float] = []
        self.prefills: list[float] = []

    def join(self, now: float) -> None:
        """Add a prompt to the server that holds the fewest."""
        chosen = self._held.index(min(self._held))
        self._held[chosen] += 1
        self._waiting[chosen].append(now)
        if not self._computing[chosen]:
            self._begin(chosen, now)

    @property
    def next_end(self) -> float:
        """Return when the next iteration ends; infinite if none runs."""
        return self._ends[0][0] if self._ends else math.inf

    def end_iterations(self, until: float) -> list[float]:
        """Return the arrival times of the prompts whose iterations end."""
        ended: list[float] = []
        while self.next_end <= until and self._ends:
            now, place = heappop(self._ends)
            self._held[place] -= len(self._computing[place])
            ended += self._computing[place]
            self._computing[place] = []
            if self._waiting[place]:
                self._begin(place, now)
        return ended

    def _begin(self, place: int, now: float) -> None:
        most, waiting = len(self._iteration_s), self._waiting[place]
        batch, self._waiting[place] = waiting[:most], waiting[most:]
        takes_s = self._iteration_s[len(batch) - 1]
        self._computing[place] = batch
        heappush(self._ends, (now + takes_s + self._between_s, place))
        self.waits += [now - arrival for arrival in batch]
        self.prefills += [takes_s] * len(batch)
