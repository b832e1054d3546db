"""The router's approximate index, for instances without KV events: fed with the trace's blocks as they are sent."""

from collections.abc import Mapping, Sequence

from controlplane.evidence.twin.simulation.call import SimCall
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.request import EngineRequest
from router.prefix.approximate import PrefixIndex

EPOCH = 1  # engines never restart here


class ApproximateView:
    def __init__(self, endpoints: Sequence[SimEndpoint], block_size: int) -> None:
        """`block_size`: of the chains, tokens."""
        self._index = PrefixIndex()
        self._block_size = block_size
        self._rounded_to = {endpoint.id: endpoint.model.limits.block_size for endpoint in endpoints}
        roundings = {*self._rounded_to.values()}
        self._rounding = roundings.pop() if len(roundings) == 1 else None  # the common rounding; None: they differ
        for endpoint in endpoints:
            self._index.limit(endpoint.id, max(endpoint.model.kv_tokens // block_size, 1))

    def held(self, call: SimCall) -> tuple[Mapping[str, int], None]:
        """Tokens by instance; instances without any are left out. Tiers are not known."""
        prompt, size, rounded_to = call.request.input_tokens, self._block_size, self._rounded_to
        if (rounding := self._rounding) is not None:
            return self._index.tokens(call.chain, size, block_size=rounding, most=prompt), None
        each: dict[str, int] = {}
        for blocks, names in self._index.holders(call.chain):
            tokens = min(blocks * size, prompt)
            each |= {name: tokens - tokens % rounded_to[name] for name in names}
        return each, None

    def sent(self, call: SimCall, instance: str) -> None:
        """The instance computes the prompt, so it will hold it."""
        self._index.insert(instance, EPOCH, call.chain)

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        """Learn from the cached tokens that the engine reports."""
        size, cached = self._block_size, work.cached_tokens
        # At least one token is computed, and a partial last block is never hit: neither is a sign of eviction.
        is_complete = cached >= (work.prompt_tokens - 1) // size * size
        self._index.correct(instance, call.chain, len(call.chain) if is_complete else cached // size)

    def began(self, call: SimCall, instance: str) -> None:
        """A first token says nothing about the cache."""
