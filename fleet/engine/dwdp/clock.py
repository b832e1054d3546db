"""The clock at the power limit: a GPU that computes continuously is slower than one that waits for others in between.
Power draws are those of fleet/engine/power.py, measured on an H200. Over an iteration

    computing · T_full + waiting · (T - T_computing) + copying · T_copy <= T

because the work of a prompt takes the same energy at any clock, and reads and waits keep their pace.
"""

from collections.abc import Callable
from dataclasses import dataclass

_STEPS = 30  # halvings


@dataclass(frozen=True, slots=True)
class PowerLimit:
    """Power draws as shares of the limit; 0 means no limit."""

    computing: float = 0.0  # draw of arithmetic at full clock
    waiting: float = 0.0  # draw while reading or waiting
    copying: float = 0.0  # draw of the copy engine, added to the others
    measured_at: float = 1.0  # share of the time for which a GPU computed when its shares of the peaks were measured

    @property
    def measured(self) -> float:
        """Return how much longer arithmetic took at that time than at full clock."""
        left = 1 - self.waiting * (1 - self.measured_at)
        return max(1.0, self.computing * self.measured_at / left)

    def slowed_beside(self, arithmetic_ms: float, other_ms: float) -> float:
        """Return how much longer arithmetic takes than when it was measured, beside a fixed time of reading and
        waiting; negative if it takes less time."""
        full_ms = arithmetic_ms / self.measured
        return max(full_ms, self.computing * full_ms - (1 - self.waiting) * other_ms) - arithmetic_ms

    def slowed_with_copy(self, arithmetic_ms: float, copy_ms: float, layer_ms: Callable[[float], float]) -> float:
        """Return the same beside copies. `layer_ms` returns the duration of the layer, given how much longer arithmetic
        takes."""
        full_ms = arithmetic_ms / self.measured
        energy = self.computing * full_ms + self.copying * copy_ms  # in ms at the limit

        def exceeds(takes_ms: float) -> bool:
            return (1 - self.waiting) * layer_ms(takes_ms - arithmetic_ms) + self.waiting * takes_ms < energy

        low, high = full_ms, max(full_ms, energy)
        for _ in range(_STEPS if exceeds(low) else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if exceeds(middle) else (low, middle)
        return low - arithmetic_ms


UNLIMITED = PowerLimit()
