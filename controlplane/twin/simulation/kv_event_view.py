"""What the router knows of instances that publish KV events: what their engines hold, and what is on its way there.

The router's exact index follows the events and so says the same; here the engine is at hand. Only what the index
foresees of evictions until a request's turn (router/prefix/forecast/cache_forecast.py) is left out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.twin.simulation.call import SimCall
from controlplane.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.request import EngineRequest


@dataclass(slots=True)
class Sources:
    """Of one instance."""

    endpoint: SimEndpoint
    fresh: dict[SimCall, Sequence[int]] = field(default_factory=dict)  # blocks of each prompt that is not computed yet
    expected: Counter[int] = field(default_factory=Counter)  # all of these

    def held(self, chain: Sequence[int]) -> int:
        """Leading blocks that will be there when a request sent now gets its turn."""
        place = self.endpoint.engine.pool.held(chain)
        while place < len(chain) and chain[place] in self.expected:
            place += 1
        return place


class KvEventView:
    def __init__(self, endpoints: Sequence[SimEndpoint], block_size: int) -> None:
        """`block_size`: of the chains, tokens."""
        self._sources = {endpoint.name: Sources(endpoint) for endpoint in endpoints}
        self._block_size = block_size

    def held(self, call: SimCall) -> Mapping[str, int]:
        # An engine computes one token at least, since the first new one comes of it.
        size = self._block_size
        chain = call.chain[: (call.request.input_tokens - 1) // size]
        held = ((name, sources.held(chain)) for name, sources in self._sources.items())
        return {name: blocks * size for name, blocks in held if blocks}

    def sent(self, call: SimCall, instance: str) -> None:
        sources = self._sources[instance]
        fresh = call.chain[sources.endpoint.engine.pool.held(call.chain) :]
        sources.fresh[call] = fresh
        sources.expected.update(fresh)

    def began(self, call: SimCall, instance: str) -> None:
        sources = self._sources[instance]
        expected, fresh = sources.expected, sources.fresh.pop(call)
        expected.subtract(fresh)
        for block in fresh:
            if not expected[block]:
                del expected[block]

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        """The engine's own word was known before."""
