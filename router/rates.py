"""What a pool's answers show of its engines: how fast they compute prompts, how fast KV moves between them.

Prefill rate: the median, over the last answers, of new tokens / time to the first byte, of long prompts whose instance
had nothing else of this router's to do meanwhile. What other routers sent is not known exactly: hence not the mean.

Transfers: seconds = t0 + bytes / rate, by least squares over the offloads so far, each weighing FORGET times the next
one. The seconds are those from sending the decode request to its first byte: t0 holds the API and one step as well.
"""

from collections import deque
from statistics import median

from router.call import Call
from router.policy.types import UNKNOWN, Rates

PROMPTS = 33  # the last prefills that are looked at
SHORTEST = 512  # new tokens; with fewer the engine's API takes most of the time
FORGET = 0.95  # weight of an offload against the one after it
SPREAD = 0.05  # of sizes, relative, below which setup and rate cannot be told apart


class Estimates:
    """Of one pool."""

    def __init__(self) -> None:
        self.rates = UNKNOWN
        self._prefills: deque[float] = deque(maxlen=PROMPTS)  # tokens/s
        self._line = Line()

    def ended(self, call: Call) -> Rates:
        """Take up what one request has shown; what is known by then."""
        if self._prefill(call) | self._transfer(call):
            self.rates = self._made(call)
        return self.rates

    def _prefill(self, call: Call) -> bool:
        tokens, seconds = lone_prefill(call)
        if tokens < SHORTEST or seconds <= 0:
            return False
        self._prefills.append(tokens / seconds)
        return True

    def _transfer(self, call: Call) -> bool:
        offload = call.offload
        if offload is None or offload.outcome != "ok" or offload.transfer_ms is None or not offload.transfer_bytes:
            return False
        self._line.add(offload.transfer_bytes, offload.transfer_ms / 1000)
        return True

    def _made(self, call: Call) -> Rates:
        sizes = (member.kv.get("bytes_per_token") for member in call.pool.members.values())
        per_token = next((float(size) for size in sizes if isinstance(size, int | float)), 0.0)
        setup_s, bytes_per_s = self._line.fitted()
        return Rates(
            prefill_tokens_per_s=median(self._prefills) if self._prefills else 0.0,
            kv_bytes_per_token=per_token,
            transfer_bytes_per_s=bytes_per_s,
            transfer_setup_s=setup_s,
        )


def lone_prefill(call: Call) -> tuple[int, float]:
    """(new tokens, seconds) of a prompt that was computed with nothing beside it; zeros when there was none."""
    offload = call.offload
    if offload is not None and offload.outcome == "ok":
        if not offload.alone or offload.prefill_ms is None:
            return 0, 0.0
        return offload.prefill_tokens or 0, offload.prefill_ms / 1000
    usage = call.usage
    if not call.alone or call.ttft_ms is None or usage is None or usage.prompt_tokens is None:
        return 0, 0.0
    return usage.prompt_tokens - (usage.cached_tokens or 0), call.ttft_ms / 1000


class Line:
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
        """(t0 in s, rate per s); zeros while nothing was seen.

        Of sizes too much alike, and where the fit makes no sense (a larger one took less time, or t0 is below zero),
        all of the time counts as moving.
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
