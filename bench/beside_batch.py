"""The cost of a batch to concurrent interactive requests: TTFT p90 with and without it, in the engine model.

    .venv/bin/python -m bench.beside_batch [--rates 2,8] [--most 64] [--seconds 70] [--seeds 4]

Two engines of the demo fleet run in virtual time, so other work on the machine changes nothing. The same requests
arrive with and without a batch whose lines (500 tokens, answers of 200) are paced as the worker paces them; the
routers' lowest band is not modelled. Prints Markdown.
"""

import argparse
import os
import random
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from controlplane.traffic.batches import turns
from fleet.engine.engine import Engine
from fleet.engine.scheduler import Limits
from fleet.tests.engine.builders import LAW, request
from router.contract.redis.sample import InstanceSample

ENGINES, KV_BLOCKS = 2, 28_000
LINE = (500, 200)  # tokens of prompt and answer per line
TICK_S, SAMPLE_S = 0.01, 1.0
WARM_S = 10.0
BATCH = "line"


class World:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.engines = [Engine(LAW, KV_BLOCKS, Limits()) for _ in range(ENGINES)]
        self.made = self.lanes = self.lines = 0
        self.ttft_s = list[float]()

    def send(self, kind: str, prompt: int, output: int, at: float) -> None:
        self.made += 1
        engine = min(self.engines, key=lambda one: one.running + one.waiting)
        engine.add_request(request(f"{kind}{self.made}", prompt, output), at)

    def ask(self, at: float) -> None:
        prompt, output = self.draw.lognormvariate(7.3, 0.9), self.draw.lognormvariate(4.8, 0.6)
        self.send("chat", 16 + min(16_000, int(prompt)), 1 + min(600, int(output)), at)

    def advance(self, now: float) -> None:
        for result in (result for engine in self.engines for result in engine.advance(now)):
            first: Any
            for first in result.first:
                if not first.id.startswith(BATCH) and first.arrived_s > WARM_S:
                    self.ttft_s.append(first.first_token_s - first.arrived_s)
            ended = sum(one.id.startswith(BATCH) for one in result.finished)
            self.lanes -= ended
            self.lines += ended

    def samples(self, now: float) -> list[InstanceSample]:
        return [
            InstanceSample(
                id=f"i{number}",
                epoch=1,
                at=now,
                kv_usage=engine.usage_at(now),
                waiting=float(engine.waiting),
                running=float(engine.running),
            )
            for number, engine in enumerate(self.engines)
        ]


def play(seed: int, rate: float, seconds: float, most: int) -> World:
    """Play the load with at most `most` lines of the batch in flight; 0 means no batch."""
    world, arrivals = World(seed), random.Random(f"arrivals {seed}")
    due, sampled, paced = arrivals.expovariate(rate), 0.0, turns.LinePace()
    for tick in range(1, round(seconds / TICK_S) + 1):
        now = tick * TICK_S
        while due <= now:
            world.ask(due)
            due += arrivals.expovariate(rate)
        while world.lanes < min(most, paced.most):
            world.send(BATCH, *LINE, now)
            world.lanes += 1
        world.advance(now)
        if now - sampled >= SAMPLE_S:
            sampled = now
            paced.step(world.samples(now), world.lanes)
    return world


def p90(world: World) -> float:
    return sorted(world.ttft_s)[int(0.9 * len(world.ttft_s))] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="2,8", help="interactive requests/s")
    parser.add_argument("--most", type=int, default=turns.MOST, help="lines under way")
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    print("| requests/s | n | TTFT p90 without, ms | with, ms | difference | by seed | lines |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for rate in map(float, options.rates.split(",")):
        alone = [play(seed, rate, options.seconds, 0) for seed in range(options.seeds)]
        beside = [play(seed, rate, options.seconds, options.most) for seed in range(options.seeds)]
        before, after = (sum(map(p90, worlds)) / len(worlds) for worlds in (alone, beside))
        each = ", ".join(f"{p90(b) / p90(a) - 1:+.1%}" for a, b in zip(alone, beside, strict=True))
        n, lines = (sum(counts) for counts in ((len(one.ttft_s) for one in alone), (one.lines for one in beside)))
        print(
            f"| {rate:g} | {n} | {before:.0f} | {after:.0f} | {after / before - 1:+.1%} | {each} | {lines} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
