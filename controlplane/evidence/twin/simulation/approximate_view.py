"""The router's approximate index, for instances without KV events: fed with the trace's blocks as they are sent."""

from collections.abc import Mapping, Sequence

from controlplane.evidence.twin.simulation.call import SimCall
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.request import EngineRequest
from router.prefix.approximate import PrefixIndex

EPOCH = 1  # constant, as engines never restart here


class ApproximateView:
    def __init__(self, endpoints: Sequence[SimEndpoint], block_size: int) -> None:
        """Follow the endpoints. `block_size`: tokens per block of the chains."""
        self._index = PrefixIndex()
        self._block_size = block_size
        self._rounded_to = {endpoint.id: endpoint.model.limits.block_size for endpoint in endpoints}
        roundings = {*self._rounded_to.values()}
        self._rounding = roundings.pop() if len(roundings) == 1 else None  # common rounding; None if they differ
        for endpoint in endpoints:
            self._index.limit(endpoint.id, max(endpoint.model.kv_tokens // block_size, 1))

    def held(self, call: SimCall) -> tuple[Mapping[str, int], None]:
        """Return tokens by instance, without empty ones. Tiers are unknown."""
        prompt, size, rounded_to = call.request.input_tokens, self._block_size, self._rounded_to
        if (rounding := self._rounding) is not None:
            return self._index.tokens(call.chain, size, block_size=rounding, most=prompt), None
        each: dict[str, int] = {}
        for blocks, names in self._index.holders(call.chain):
            tokens = min(blocks * size, prompt)
            each |= {name: tokens - tokens % rounded_to[name] for name in names}
        return each, None

    def sent(self, call: SimCall, instance: str) -> None:
        """Expect the prompt in the cache of the instance that computes it."""
        self._index.insert(instance, EPOCH, call.chain)

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        """Learn from the cached tokens that the engine reports."""
        size, cached = self._block_size, work.cached_tokens
        # At least one token is computed, and a partial last block is never hit: neither indicates an eviction.
        is_complete = cached >= (work.prompt_tokens - 1) // size * size
        self._index.correct(instance, call.chain, len(call.chain) if is_complete else cached // size)

    def began(self, call: SimCall, instance: str) -> None:
        """Do nothing: a first token says nothing about the cache."""
