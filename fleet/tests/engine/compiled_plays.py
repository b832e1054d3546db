"""Simulations with which the engine and its compiled copy are compared; prints where the engine's code is, then the
results.

python -m fleet.tests.engine.compiled_plays [FOLDER of the copy]
"""

import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleet.engine.compiled import ENGINE

TIMES = ("ready_s", "scheduled_s", "first_token_s", "second_token_s", "last_token_s", "finished_s")
COUNTS = ("cached_tokens", "preemptions", "interruptions", "load_s", "tier_tokens")


def plays() -> Iterator[tuple[Any, ...]]:
    """Yield simulations for each scheduler: chunks, shared prefixes, evictions, preemptions, aborts and loads from
    below the GPU."""
    from fleet.engine.neuron_batches import KNOWN_HITS
    from fleet.engine.scheduler import VLLM, WHOLE_PROMPTS, Limits
    from fleet.tests.engine.tiers.builders import tiers

    for batching in (VLLM, KNOWN_HITS, WHOLE_PROMPTS):
        for ahead in (True, False):
            yield batching, ahead, *play(batching, ahead)
    pickled = pickle.dumps(Limits(32, 24))
    yield "pickled", pickled, pickle.loads(pickled) == Limits(32, 24)
    yield "tiers", *play(VLLM, True, tiers("dram", "ssd", blocks=400))


def play(batching: str, ahead: bool, below: Any = None) -> tuple[Any, ...]:
    from fleet.engine.engine import Engine
    from fleet.engine.request import EngineRequest
    from fleet.engine.scheduler import Limits
    from fleet.tests.engine.builders import LAW

    draw, at_s, asked = random.Random(1), 0.0, []
    engine = Engine(LAW, 600, Limits(16, 24, 1024, batching, ahead), record_events=True, tiers=below)
    for number in range(250):
        at_s += draw.expovariate(25)
        prompt, output, family = draw.randint(1, 1000), draw.randint(1, 400), draw.randint(1, 8)
        chain = [family * 1000 + at if at < 40 else -(number * 1000 + at) for at in range((prompt + output) // 16)]
        known = draw.randint(0, prompt) if batching == "known_hits" else None
        asked.append(EngineRequest(str(number), prompt, output, chain, content=known))
        engine.advance(at_s)
        engine.add_request(asked[-1], at_s)
        if not number % 20:
            engine.abort(str(number // 2))
    steps = [(one.start_s, one.end_s, one.steps, one.scheduled, one.context) for one in engine.advance(1e9)]
    requests = [tuple(getattr(one, name) for name in (*TIMES, *COUNTS)) for one in asked]
    return requests, steps, engine.stats(), engine.pool.take_events()


def fit() -> tuple[Any, ...]:
    from fleet.calibration.traffic.physical import physical_starts
    from fleet.calibration.traffic.traffic_fit import fit_traffic
    from fleet.tests.calibration.traffic import CPU, LIMITS, traffic

    requests = traffic(CPU, 5, 170)
    return requests, fit_traffic(requests, LIMITS, physical_starts("Qwen/Qwen3-8B", 1)[:1])


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        ENGINE.use(Path(folder))
    results = [*plays(), *fit()]
    print(ENGINE.runs(), *results, sep="\n")
