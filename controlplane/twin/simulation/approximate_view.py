"""What the router takes instances to hold of a prompt that do not tell: its approximate index, fed with the trace's
blocks as they are sent."""

from collections.abc import Mapping, Sequence

from controlplane.twin.simulation.call import SimCall
from controlplane.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.request import EngineRequest
from router.prefix.approximate import PrefixIndex

LIFE = 1  # of an engine: none of them starts again


class ApproximateView:
    def __init__(self, endpoints: Sequence[SimEndpoint], block_size: int) -> None:
        """`block_size`: of the chains, tokens."""
        self._index = PrefixIndex()
        self._block_size = block_size
        self._rounded_to = {endpoint.name: endpoint.model.limits.block_size for endpoint in endpoints}
        for endpoint in endpoints:
            self._index.limit(endpoint.name, max(endpoint.model.kv_tokens // block_size, 1))

    def held(self, call: SimCall) -> Mapping[str, int]:
        """Tokens by instance; those that hold nothing are left out."""
        size, rounded_to, prompt = self._block_size, self._rounded_to, call.request.input_tokens
        found = {}
        for name, blocks in self._index.match(call.chain).items():
            tokens = min(blocks * size, prompt)
            found[name] = tokens - tokens % rounded_to[name]
        return found

    def sent(self, call: SimCall, instance: str) -> None:
        """The instance computes the prompt from now on, so it holds it."""
        self._index.insert(instance, LIFE, call.chain)

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        """The engine says how much of the prompt it had."""
        size, cached = self._block_size, work.cached_tokens
        # At least one token is computed, and what is cut of the last block cannot be hit: no sign of an eviction.
        all_there = cached >= (work.prompt_tokens - 1) // size * size
        self._index.correct(instance, call.chain, len(call.chain) if all_there else cached // size)

    def began(self, call: SimCall, instance: str) -> None:
        """A first token says nothing about what is held."""
