"""Measured rates of a pool: how fast its engines compute prompts and how fast KV moves between them. Pure.

Prefill rate: the median over the last answers of new tokens / time to first byte, for long prompts on an instance
without other requests of this router. The median, not the mean: the load from other routers is not known exactly.

Transfers: seconds = t0 + bytes / rate, by least squares over the offloads, each weighing FORGET times the next one.
The seconds are those from sending the decode request to its first byte, so t0 includes the API and one step.
"""

from collections import deque
from statistics import median

from router.policy.types import Rates

PROMPTS = 33  # latest prefills in the median
SHORTEST = 512  # new tokens; with fewer the engine's API takes most of the time
FORGET = 0.95  # weight of an offload against the one after it
SPREAD = 0.05  # of sizes, relative, below which setup and rate cannot be separated


class Pace:
    def __init__(self) -> None:
        self._prefills: deque[float] = deque(maxlen=PROMPTS)  # tokens/s
        self._transfers = LinearFit()

    def prefill(self, tokens: int, seconds: float) -> bool:
        """Add a prompt that was computed alone; False when it is too short to count."""
        if tokens < SHORTEST or seconds <= 0:
            return False
        self._prefills.append(tokens / seconds)
        return True

    def transfer(self, size: int, seconds: float) -> None:
        """`size`: bytes."""
        self._transfers.add(size, seconds)

    def rates(self, bytes_per_token: float) -> Rates:
        setup_s, bytes_per_s = self._transfers.fitted()
        return Rates(
            prefill_tokens_per_s=median(self._prefills) if self._prefills else 0.0,
            kv_bytes_per_token=bytes_per_token,
            transfer_bytes_per_s=bytes_per_s,
            transfer_setup_s=setup_s,
        )


class LinearFit:
    """seconds = t0 + size / rate, from weighted sums. Pure."""

    __slots__ = ("_seconds", "_size", "_square", "_sum", "_weight")

    def __init__(self) -> None:
        self._weight = self._size = self._square = self._seconds = self._sum = 0.0

    def add(self, size: float, seconds: float) -> None:
        self._weight = self._weight * FORGET + 1
        self._size = self._size * FORGET + size
        self._square = self._square * FORGET + size * size
        self._seconds = self._seconds * FORGET + seconds
        self._sum = self._sum * FORGET + size * seconds

    def fitted(self) -> tuple[float, float]:
        """(t0 in s, rate per s); zeros without data.

        All of the time counts as transfer when sizes are too similar, and when the fit is implausible (a larger
        transfer took less time, or t0 is negative).
        """
        if not self._weight:
            return 0.0, 0.0
        size, seconds = self._size / self._weight, self._seconds / self._weight
        variance = self._square / self._weight - size * size
        if variance > (SPREAD * size) ** 2:
            slope = (self._sum / self._weight - size * seconds) / variance
            if slope > 0 and seconds - slope * size >= 0:
                return seconds - slope * size, 1 / slope
        return 0.0, size / seconds if seconds else 0.0
