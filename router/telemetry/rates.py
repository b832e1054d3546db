"""Speed of a pool's engines, estimated from finished requests (router/pool/pace.py)."""

from router.policy.types import UNKNOWN, Rates
from router.pool.pace import Pace
from router.request.call import Call
from router.request.offload import Offload


class RateEstimates:
    def __init__(self) -> None:
        self.rates = UNKNOWN
        self._pace = Pace()

    def ended(self, call: Call) -> Rates:
        """Learn from a finished request; returns the current estimates."""
        learned = self._pace.prefill(*lone_prefill(call))
        if call.outcome.offload is not None:
            learned |= self._transfer(call.outcome.offload)
        if learned:
            sizes = (endpoint.kv.bytes_per_token for endpoint in call.pool.endpoints.values())
            self.rates = self._pace.rates(next((float(size) for size in sizes if size is not None), 0.0))
        return self.rates

    def _transfer(self, offload: Offload) -> bool:
        if offload.outcome != "ok" or offload.transfer_ms is None or not offload.transfer_bytes:
            return False
        self._pace.transfer(offload.transfer_bytes, offload.transfer_ms / 1000)
        return True


def lone_prefill(call: Call) -> tuple[int, float]:
    """(new tokens, seconds) of a prompt that the engine computed alone; zeros when it was not alone."""
    outcome = call.outcome
    offload = outcome.offload
    if offload is not None and offload.outcome == "ok":
        if not offload.alone or offload.prefill_ms is None:
            return 0, 0.0
        return offload.prefill_tokens or 0, offload.prefill_ms / 1000
    usage = outcome.usage
    if not outcome.alone or outcome.ttft_ms is None or usage is None or usage.prompt_tokens is None:
        return 0, 0.0
    return usage.prompt_tokens - (usage.cached_tokens or 0), outcome.ttft_ms / 1000
