"""Rates of a pool's engines, estimated from finished requests (router/pool/load/pace.py)."""

from router.policy.types import UNKNOWN, Rates
from router.pool.load.pace import PACES_S, Pace
from router.pool.pool import Pool
from router.request.call import Call
from router.request.offload import Offload


class RateEstimates:
    def __init__(self) -> None:
        self.rates = UNKNOWN
        self._pace = Pace()
        self._paced_at = 0.0  # s, Unix

    def ended(self, call: Call) -> Rates:
        """Learn from a finished request; return the current estimates."""
        tokens, cached, seconds = lone_prefill(call)
        learned = bool(tokens) and self._computed(call.pool, computed_on(call), tokens, cached, seconds, call.at)
        if call.outcome.offload is not None:
            learned |= self._transfer(call.outcome.offload)
        if learned:
            self._estimate(call.pool)
        return self.rates

    def probed(self, pool: Pool, name: str, tokens: int, seconds: float, now: float) -> Rates:
        """Learn, like `ended`, from a prompt that this endpoint computed alone. `now` is Unix time."""
        if self._computed(pool, name, tokens, 0, seconds, now):
            self._estimate(pool)
        return self.rates

    def _computed(self, pool: Pool, name: str, tokens: int, cached: int, seconds: float, now: float) -> bool:
        """Learn from a computed prompt; return False if it is too short."""
        endpoint = pool.endpoints.get(name)
        if not self._pace.prefill(tokens, cached, seconds, name, endpoint.speed if endpoint is not None else ""):
            return False
        if endpoint is not None:
            endpoint.measured_at = now
        if not 0 <= now - self._paced_at < PACES_S:
            self._paced_at = now
            paces = self._pace.paces({endpoint.id: endpoint.speed for endpoint in pool.endpoints.values()})
            for endpoint_name, pace in paces.items():
                pool.endpoints[endpoint_name].take_pace(pace)
        return True

    def _estimate(self, pool: Pool) -> None:
        sizes = (endpoint.kv.bytes_per_token for endpoint in pool.endpoints.values())
        size = next((float(size) for size in sizes if size is not None), 0.0)
        self.rates = self._pace.rates(size, pool.rates.equal_cost_tokens)

    def _transfer(self, offload: Offload) -> bool:
        if offload.outcome != "ok" or not offload.transfer_ms or not offload.transfer_bytes:
            return False
        if offload.pull is None or offload.pull_ms is None or offload.taken_ms is None:
            self._pace.transfer(offload.transfer_bytes, offload.transfer_ms / 1000)
        else:  # assumes that concurrent pulls from there moved as many bytes
            self._pace.transfer(offload.transfer_bytes * offload.pull.sharing, offload.transfer_ms / 1000)
            self._pace.pulled(offload.taken_ms / 1000, offload.pull_ms / 1000)
        return True


def lone_prefill(call: Call) -> tuple[int, int, float]:
    """Return (new tokens, cached tokens, seconds) of a prompt that the engine computed without other load; otherwise
    zeros."""
    outcome = call.outcome
    offload, usage = outcome.offload, outcome.usage
    prompt = usage.prompt_tokens if usage is not None else None
    if offload is not None and offload.outcome == "ok":
        if not offload.alone or offload.prefill_ms is None or offload.lent_tokens:
            return 0, 0, 0.0
        new = offload.prefill_tokens or 0
        return new, max(0, (prompt or new) - new), offload.prefill_ms / 1000
    if not outcome.alone or outcome.ttft_ms is None or usage is None or prompt is None:
        return 0, 0, 0.0
    if usage.cached_tokens is None and call.decision is not None and call.decision.cached_tokens:
        return 0, 0, 0.0  # new tokens are unreported, and probably fewer than the prompt has
    cached = usage.cached_tokens or 0
    return prompt - cached, cached, outcome.ttft_ms / 1000


def computed_on(call: Call) -> str:
    """Return the endpoint that computed the prompt."""
    offload = call.outcome.offload
    return offload.prefill if offload is not None and offload.outcome == "ok" else call.instance
