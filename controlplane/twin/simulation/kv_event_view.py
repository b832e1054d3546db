"""The router's exact index, for instances with KV events: the blocks that engines hold, and those being computed.

The router follows the events; here the engine itself is asked. The forecast of evictions until a request is admitted
(router/prefix/forecast/cache_forecast.py) is left out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.twin.simulation.call import SimCall
from controlplane.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.request import EngineRequest

Held = tuple[Mapping[str, int], Mapping[str, tuple[int, int, int]] | None]  # see Index.held
TIER_OF = {"GPU": 0, "CPU": 1, "DISK": 2}  # by medium, as the router counts them


@dataclass(slots=True)
class ExpectedBlocks:
    endpoint: SimEndpoint
    fresh: dict[SimCall, Sequence[int]] = field(default_factory=dict)  # blocks of each prompt that is being computed
    expected: Counter[int] = field(default_factory=Counter)  # all of these

    def held(self, chain: Sequence[int]) -> int:
        """Leading blocks that will be there when a request sent now is admitted."""
        held = self.endpoint.engine.pool.held(chain)
        while held < len(chain) and chain[held] in self.expected:
            held += 1
        return held

    def by_tier(self, chain: Sequence[int]) -> list[int]:
        """The same on device, in host memory and on disk."""
        engine = self.endpoint.engine
        held = [engine.pool.held(chain), 0, 0]
        for key in chain[held[0] :]:
            medium = "GPU" if key in self.expected else engine.below(key)
            if not medium:
                break
            held[TIER_OF[medium]] += 1
        return held


class KvEventView:
    def __init__(self, endpoints: Sequence[SimEndpoint], block_size: int) -> None:
        """`block_size`: of the chains, tokens."""
        self._instances = {endpoint.id: ExpectedBlocks(endpoint) for endpoint in endpoints}
        self._block_size = block_size
        self._has_tiers = any(endpoint.model.tiers is not None for endpoint in endpoints)

    def held(self, call: SimCall) -> Held:
        # An engine computes at least one prompt token, to produce the first new one.
        size = self._block_size
        chain = call.chain[: (call.request.input_tokens - 1) // size]
        if not self._has_tiers:
            held = ((name, known.held(chain)) for name, known in self._instances.items())
            return {name: blocks * size for name, blocks in held if blocks}, None
        tiers = {}
        for name, known in self._instances.items():
            device, host, disk = known.by_tier(chain)
            if device or host or disk:
                tiers[name] = device * size, host * size, disk * size
        return {name: sum(tokens) for name, tokens in tiers.items()}, tiers

    def sent(self, call: SimCall, instance: str) -> None:
        known = self._instances[instance]
        fresh = call.chain[known.endpoint.engine.pool.held(call.chain) :]
        known.fresh[call] = fresh
        known.expected.update(fresh)

    def began(self, call: SimCall, instance: str) -> None:
        known = self._instances[instance]
        expected = known.expected
        for block in known.fresh.pop(call):
            left = expected.pop(block) - 1
            if left:
                expected[block] = left

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        """The index already knew."""
