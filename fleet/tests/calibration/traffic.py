"""Recorded requests of an engine whose constants are known."""

import math
import random
from dataclasses import replace

from fleet.calibration.limits import EngineLimits
from fleet.calibration.traffic.recorded import RecordedRequest
from fleet.calibration.traffic.replayed import EngineConstants, replay
from fleet.engine.law import Law

LIMITS = EngineLimits(20_000, 16, 256, 8192, 131_072)
# A tiny model on a CPU, far from every built-in profile.
CPU = Law(0.002, 2e-5, 0.001, 2e-9, 1e-8, 0.0, decode_s=1.9e-4)


def traffic(
    law: Law, rate: float, count: int, *, noise: float = 0.05, limits: EngineLimits = LIMITS, seed: int = 1
) -> list[RecordedRequest]:
    """Return requests with Poisson arrivals, half of their prompts partly cached. `noise`: standard deviation of the
    log of a TTFT."""
    draw, at_s = random.Random(seed), 0.0
    asked = []
    for _ in range(count):
        at_s += draw.expovariate(rate)
        prompt = max(1, round(draw.lognormvariate(math.log(800), 1.0)))
        cached, output = int(prompt * draw.choice([0, 0, 0.5, 0.9])), max(1, round(draw.expovariate(1 / 150)))
        asked.append(RecordedRequest(at_s, prompt, cached, output, None, None))
    played = replay(asked, EngineConstants(law, 0.01, 0.0), limits)
    return [_measured(one.modelled, draw, noise) for one in played.pairs]


def _measured(one: RecordedRequest, draw: random.Random, noise: float) -> RecordedRequest:
    assert one.ttft_s is not None
    first, then = math.exp(draw.gauss(0, noise)), math.exp(draw.gauss(0, noise / 2))
    return replace(one, ttft_s=one.ttft_s * first, tpot_s=one.tpot_s and one.tpot_s * then)
