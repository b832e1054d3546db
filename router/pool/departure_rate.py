"""Rate of departures from the queue, for `Retry-After` and deadlines. Pure: time is an argument (s)."""

import math

MEMORY_S = 10.0  # time constant of forgetting
ENOUGH = 3.0  # departures remembered before there is a rate


class DepartureRate:
    """Departures counted with exponential forgetting."""

    __slots__ = ("_at", "_began", "_count")

    def __init__(self) -> None:
        self._count = 0.0
        self._at = 0.0
        self._began: float | None = None  # the first departure; a younger memory covers less time

    def left(self, now: float) -> None:
        if self._began is None or self._faded(now) < 0.01:
            self._began, self._count = now, 0.0
        self._count = self._faded(now) + 1.0
        self._at = now

    def rate(self, now: float) -> float | None:
        """Departures per second; None while too few are remembered."""
        count = self._faded(now)
        if self._began is None or count < ENOUGH:
            return None
        seen_s = MEMORY_S * (1.0 - math.exp(-(now - self._began) / MEMORY_S))
        return count / max(seen_s, 0.001)

    def _faded(self, now: float) -> float:
        return self._count * math.exp(-(now - self._at) / MEMORY_S)
