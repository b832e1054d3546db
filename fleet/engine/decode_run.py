"""Runs of similar decode steps, in closed form."""

import math
import sys
from dataclasses import dataclass


@dataclass(slots=True)  # frozen, making one would take four times as long
class DecodeRun:
    """Decode steps of the same batch, each longer than the previous one by one token of context per sequence."""

    steps: int  # number of steps until the first sequence ends
    first_s: float  # length of the next step
    growth_s: float
    batch: int  # sequences
    context: int  # context in the next step, summed over the sequences

    def after(self, steps: int) -> "DecodeRun":
        first_s, context = self.first_s + steps * self.growth_s, self.context + steps * self.batch
        return DecodeRun(self.steps - steps, first_s, self.growth_s, self.batch, context)


def run_s(steps: int, first_s: float, growth_s: float) -> float:
    """Return the duration of `steps` steps, each `growth_s` longer than the previous one."""
    return steps * first_s + growth_s * steps * (steps - 1) / 2


def steps_within(span_s: float, first_s: float, growth_s: float) -> int:
    """Return the largest number of steps that end within the span."""
    if span_s < first_s:
        return 0
    if span_s == math.inf:
        return sys.maxsize
    if growth_s == 0:
        return int(span_s / first_s)
    slope = first_s - growth_s / 2
    steps = int((math.sqrt(slope * slope + 2 * growth_s * span_s) - slope) / growth_s)
    while run_s(steps + 1, first_s, growth_s) <= span_s:
        steps += 1
    while run_s(steps, first_s, growth_s) > span_s:
        steps -= 1
    return steps
