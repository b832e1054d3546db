"""The load of the published comparison of tiers (arXiv 2605.03375, figure 8), as far as it is known: LEval's 20 tasks
in turn, Poisson arrivals, six questions of 100 tokens about each document.

Lengths are assumed: log-normal with a mean of 13,000 tokens (fitted to the TTFT without tiers), 3,000 to 200,000, each
task with documents of its own range.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from statistics import NormalDist, fmean

from fleet.engine.engine import Engine
from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Limits
from fleet.engine.tiers.devices import DEVICES, LAYER_PASS_S
from fleet.engine.tiers.model import TierModel, TiersModel
from fleet.engine.tiers.sizes import layout_of

TASKS, OPEN, QUESTIONS, QUESTION = 20, 9, 6, 100  # documents open in each task; questions a document; tokens
SIGMA, SHORTEST, LONGEST = 1.0, 3_000, 200_000
BLOCK = 256
HBM_TOKENS = 410_000
GOLDEN = (math.sqrt(5) - 1) / 2
PLAIN = law_of(profile())
LAW = replace(PLAIN, attention_s_per_pair=PLAIN.attention_s_per_pair * 1.6)  # fitted to figure 11
CAPACITY = {"dram": 256e9, "ssd": 14e12, "ssd-gds": 14e12, "ssd-tutti": 14e12}


@dataclass(slots=True)
class Document:
    name: int
    tokens: int
    questions: int  # left


class Documents:
    """Open documents of each task; the next one of a task has the next quantile of its range of lengths."""

    def __init__(self, rng: Random, mean: float) -> None:
        self._rng = rng
        normal = NormalDist(math.log(mean) - SIGMA**2 / 2, SIGMA)
        self._low, self._high = normal.cdf(math.log(SHORTEST)), normal.cdf(math.log(LONGEST))
        self._normal = normal
        self._at = [rng.random() for _ in range(TASKS)]
        self._made = 0
        self._open = [[self._new(task, rng.randint(1, QUESTIONS)) for _ in range(OPEN)] for task in range(TASKS)]

    def _new(self, task: int, questions: int = QUESTIONS) -> Document:
        self._made += 1
        self._at[task] = (self._at[task] + GOLDEN) % 1
        share = (task + self._at[task]) / TASKS
        tokens = math.exp(self._normal.inv_cdf(self._low + (self._high - self._low) * share))
        return Document(self._made, int(tokens), questions)

    def asked(self) -> Iterator[Document]:
        """Tasks in a new order in each round, a random open document of each."""
        order = list(range(TASKS))
        while True:
            self._rng.shuffle(order)
            for task in order:
                which = self._rng.randrange(OPEN)
                if not self._open[task][which].questions:
                    self._open[task][which] = self._new(task)
                document = self._open[task][which]
                document.questions -= 1
                yield document


def engine(name: str) -> Engine:
    """One prompt at a time, first come, first served; `hbm`: without a tier."""
    limits = Limits(BLOCK, 1, 8192, async_scheduling=False)
    tiers = None
    if name != "hbm":
        tier = TierModel(DEVICES[name], CAPACITY[name])
        tiers = TiersModel(layout=layout_of(profile()), tiers=(tier,), always_load=True, floor_s=LAYER_PASS_S)
    return Engine(LAW, HBM_TOKENS // BLOCK, limits, tiers=tiers)


def played(name: str, rate: float, seed: int, *, warm: int, measured: int, mean: float = 13_000) -> tuple[float, float]:
    """Mean TTFT, s, and the cached share of the prompts, after `warm` requests and an empty queue."""
    rng = Random(seed)
    one, documents = engine(name), Documents(rng, mean).asked()
    now, requests = 0.0, []
    for number in range(warm + measured):
        now = now + rng.expovariate(rate) if number != warm else max(now, one.clock_s)
        document = next(documents)
        chain = [hash((document.name, at)) for at in range(document.tokens // BLOCK)]
        asked = EngineRequest(str(number), document.tokens + QUESTION, 1, chain)
        while (due_s := one.next_turn_s()) is not None and due_s <= now:
            one.turn(due_s)
        if number == warm:
            while (due_s := one.next_turn_s()) is not None:
                one.turn(due_s)
            now = max(now, one.clock_s)
        one.add_request(asked, now)
        requests.append(asked)
    while (due_s := one.next_turn_s()) is not None:
        one.turn(due_s)
    counted = requests[warm:]
    cached = sum(asked.cached_tokens for asked in counted) / sum(asked.prompt_tokens for asked in counted)
    return fmean(asked.first_token_s - asked.arrived_s for asked in counted), cached
