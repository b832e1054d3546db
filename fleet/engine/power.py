"""The clock of a GPU at its power limit: arithmetic takes longer if the GPU computes most of the time.
The mean power over the last second may not exceed the limit. At the clock of a single prompt, the GPU draws more than
the limit while it computes, and less while it reads memory, decodes or waits. If the GPU computed during the share u of
that second, the time that arithmetic limits is multiplied by

    slowdown = max(1, computing · u / (1 - reading · (1 - u)))

as the work of a prompt takes the same energy at any clock, and what remains of the limit has to cover it. Reads of
memory keep their speed, as the clock of the memory does not fall.
"""

import math
from dataclasses import dataclass

WINDOW_S = 1.0  # period of the driver's mean


@dataclass(frozen=True, slots=True)
class Draws:
    """Shares of the GPU's power limit."""

    computing: float  # draw while arithmetic-bound, at the clock of a single prompt
    reading: float  # draw at other times, as while memory-bound


UNKNOWN = Draws(0.0, 0.0)  # the clock never falls
# Measured on an H200 (700 W), which is the H100's chip with other memory. Reading: 489 to 553 W in loads of sessions
# with few prompts. Computing: fitted to Llama-3.1-8B at 14 requests/s; it gives 583 W at 4 requests/s, where 576 were
# measured, and holds for Qwen3-14B (docs/findings/gpu.md).
GH100 = Draws(computing=1.2, reading=0.73)
GPUS = ("h100_sxm", "h200_sxm", "NVIDIA H100 80GB HBM3", "NVIDIA H200")  # names by profiles and by drivers


def draws_of(gpu: str) -> Draws:
    return GH100 if gpu in GPUS else UNKNOWN


class Clock:
    """Tracks how much longer arithmetic takes, from step to step."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._share = 0.0  # busy share of the last second
        self._at_s = 0.0  # end of that second

    def step_s(self, start_s: float, step_s: float, computing_s: float) -> float:
        """Return the duration of a step that starts at the given time, at the clock that results from the time before.
        `computing_s` is the arithmetic part at full clock.
        """
        computing_s = min(computing_s, step_s)
        share = self._share * math.exp((self._at_s - start_s) / WINDOW_S)
        slowed_s = computing_s * self.slowdown(share)
        step_s += slowed_s - computing_s
        kept = math.exp(-step_s / WINDOW_S)
        self._share = share * kept + (slowed_s / step_s * (1 - kept) if step_s else 0.0)
        self._at_s = start_s + step_s
        return step_s

    def slowdown(self, share: float) -> float:
        """Return the slowdown; 1: none. `share` is the share of the last second's busy time in which the GPU
        computed, 0–1."""
        left = 1 - self._draws.reading * (1 - share)
        return max(1.0, self._draws.computing * share / left)
