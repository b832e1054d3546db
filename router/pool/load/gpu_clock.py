"""Division of an endpoint's GPU-seconds among its requests, by weight. A clock advances by gpus · dt / W, where W is
the weight of all requests there, including those of other routers. A request is charged its weight times the clock's
advance, so that all charges add up to the time in which there was at least one request (processor sharing). A decode
weighs 1, a prompt 1 for every 256 new tokens until its first byte.
"""

from typing import Final

from router.contract.redis.router_status import Load

PREFILL_TOKENS: Final = 256  # new tokens with the weight of one decode: about the computation of one step
HOUR_S = 3600


class GpuSpent:
    """The GPU time of one request over all attempts and its prefill, part of its outcome."""

    __slots__ = ("dollars", "gpu_s")

    def __init__(self) -> None:
        self.gpu_s = self.dollars = 0.0


def prefill_weight(tokens: int) -> float:
    return tokens / PREFILL_TOKENS if tokens > PREFILL_TOKENS else 1.0


class GpuClock:
    """Times are in seconds on one monotonic clock."""

    __slots__ = ("_at", "_others", "_own", "_requests", "dollars_per_s", "gpus", "reading")

    def __init__(self) -> None:
        self.gpus = 0.0
        self.dollars_per_s = 0.0  # price of a GPU with its share of the instance's memory
        self.reading = 0.0  # GPU-seconds per unit of weight
        self._at = 0.0
        self._own = 0.0  # weight of this router's requests
        self._others = 0.0
        self._requests = 0

    def priced(self, gpus: float, dollars_per_hour: float | None, now: float) -> None:
        self._advance(now)
        self.gpus = gpus
        self.dollars_per_s = (dollars_per_hour or 0.0) / gpus / HOUR_S if gpus else 0.0

    def take_others(self, load: Load, now: float) -> None:
        """Take over the load that other routers put on the endpoint."""
        self._advance(now)
        requests, prefill_tokens, decodes = load
        prefills = max(0, requests - decodes)
        self._others = decodes + (max(prefills, prefill_tokens / PREFILL_TOKENS) if prefills else 0)

    def join(self, weight: float, now: float) -> float:
        """Add a request; return the reading from which its charge starts."""
        if self._requests and now > self._at:  # inlined `_advance`
            self.reading += self.gpus * (now - self._at) / (self._own + self._others)
        self._at = now
        self._own += weight
        self._requests += 1
        return self.reading

    def change(self, weight: float, since: float, now: float, spent: GpuSpent | None, to: float) -> float:
        """Charge for the old weight; return the reading from which the charge for the new weight starts."""
        reading = self._advance(now)
        self._own += to - weight
        if spent is not None:
            self._charge(weight * (reading - since), spent)
        return reading

    def leave(self, weight: float, since: float, now: float, spent: GpuSpent | None) -> None:
        if now > self._at:  # inlined `_advance`
            self.reading += self.gpus * (now - self._at) / (self._own + self._others)
        self._at = now
        self._requests -= 1
        self._own = self._own - weight if self._requests else 0.0  # rounding errors are cleared when idle
        if spent is not None:  # inlined `_charge`
            gpu_s = weight * (self.reading - since)
            spent.gpu_s += gpu_s
            spent.dollars += gpu_s * self.dollars_per_s

    def _charge(self, gpu_s: float, spent: GpuSpent) -> None:
        spent.gpu_s += gpu_s
        spent.dollars += gpu_s * self.dollars_per_s

    def _advance(self, now: float) -> float:
        if self._requests and now > self._at:
            self.reading += self.gpus * (now - self._at) / (self._own + self._others)
        self._at = now
        return self.reading
