"""The clock of a GPU at its power limit: arithmetic takes longer if the GPU computes most of the time. The mean power
over the last second may not exceed the limit. At the clock of a single prompt, the GPU draws more than the limit while
it computes, and less while it reads memory, decodes or waits. If the GPU computed during the share u of that second,
the time that arithmetic limits is multiplied by

    slowdown = max(1, computing · u / (1 - reading · (1 - u)))

because the work of a prompt takes the same energy at any clock, and the remainder of the limit has to cover it. Reads
of memory keep their speed, because the memory's clock does not fall.
"""

import math
from dataclasses import dataclass

WINDOW_S = 1.0  # period of the driver's mean


@dataclass(frozen=True, slots=True)
class Draws:
    """Shares of the GPU's power limit."""

    computing: float  # draw while limited by arithmetic, at the clock of a single prompt
    reading: float  # draw at other times, for example while limited by memory


UNKNOWN = Draws(0.0, 0.0)  # the clock never falls
# Measured on an H200 (700 W), which is the H100's chip with other memory. Reading: 489 to 553 W in loads of sessions
# with few prompts. Computing: fitted to Llama-3.1-8B at 14 requests/s; it gives 583 W at 4 requests/s, where 576 were
# measured, and holds for Qwen3-14B (docs/findings/gpu.md).
GH100 = Draws(computing=1.2, reading=0.73)
GPUS = ("h100_sxm", "h200_sxm", "NVIDIA H100 80GB HBM3", "NVIDIA H200")  # names in profiles and in drivers
LIMIT_W = 700.0  # limit of these GPUs by their data sheets
# Share of the limit while nothing is computed. Six H100s in one nvidia-smi printout (driver 535, 2025): 71 and 75 W
# without a process, 112 to 119 W with one, whether it holds 7 or 80 GB. arXiv:2605.23918 (14 H100s, 18 days) finds the
# same: 26 to 50 W for the process, under 0.02 W for a further GB.
IDLE = 0.17


def draws_of(gpu: str) -> Draws:
    return GH100 if gpu in GPUS else UNKNOWN


def limit_w(gpu: str) -> float | None:
    """Return the power limit of a GPU with known draws."""
    return LIMIT_W if gpu in GPUS else None


def at_limit_s(draws: Draws, busy_s: float, idle_s: float, more_s: float) -> float:
    """Return the energy of a GPU in seconds at its limit. `more_s` is that of arithmetic as counted by `Clock`."""
    return draws.reading * busy_s + IDLE * idle_s + more_s


class Clock:
    """Tracks, from step to step, how much longer arithmetic takes."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._share = 0.0  # busy share of the last second
        self._at_s = 0.0  # end of that second
        self.more_s = 0.0  # energy of arithmetic beyond that of reads of the same duration, in seconds at the limit

    def step_s(self, start_s: float, step_s: float, computing_s: float) -> float:
        """Return the duration of a step that starts at the given time, at the clock that results from the time before.
        `computing_s` is the arithmetic part at full clock.
        """
        computing_s = min(computing_s, step_s)
        share = self._share * math.exp((self._at_s - start_s) / WINDOW_S)
        slowed_s = computing_s * self.slowdown(share)
        step_s += slowed_s - computing_s
        self.more_s += self._draws.computing * computing_s - self._draws.reading * slowed_s
        kept = math.exp(-step_s / WINDOW_S)
        self._share = share * kept + (slowed_s / step_s * (1 - kept) if step_s else 0.0)
        self._at_s = start_s + step_s
        return step_s

    def slowdown(self, share: float) -> float:
        """Return the slowdown; 1 means none. `share` is the share of the last second's busy time for which the GPU
        computed, 0–1."""
        left = 1 - self._draws.reading * (1 - share)
        return max(1.0, self._draws.computing * share / left)
