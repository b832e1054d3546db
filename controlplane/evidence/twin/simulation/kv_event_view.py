"""The router's exact index, for instances with KV events: blocks that engines hold, and blocks being computed.
The router follows events; here the engines' pools report directly. The forecast of evictions until a request is
admitted (router/prefix/forecast/cache_forecast.py) is left out.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.evidence.twin.simulation.call import SimCall
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.request import EngineRequest
from router.policy.held import HeldByLevel

Held = tuple[Mapping[str, int], Mapping[str, tuple[int, int, int]] | None]  # see Index.held
FOLLOWED_ABOVE = 32  # number of instances up to which querying each costs less than following all of them
TIER_OF = {"GPU": 0, "CPU": 1, "DISK": 2}  # tier by medium, as the router counts them


class Holders:
    """Stores, for each block, a mask of the instances that hold or compute it, because most of many instances hold the
    same blocks."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}

    def add(self, blocks: Iterable[int], bit: int) -> None:
        of = self._of
        for block in blocks:
            of[block] = of.get(block, 0) | bit

    def discard(self, block: int, bit: int) -> None:
        left = self._of.get(block, 0) & ~bit
        if left:
            self._of[block] = left
        else:
            self._of.pop(block, None)

    def held(self, chain: Sequence[int]) -> list[tuple[int, int]] | None:
        """Return (leading blocks of the chain, instances that hold exactly these), ascending; None if an instance lacks
        a block between blocks that it holds.
        """
        there, at, levels = self._of.get(chain[0], 0) if chain else 0, 0, []
        while there:
            end = self._alike(chain, at, there)
            further = self._of.get(chain[end], 0) if end < len(chain) else 0
            if further & ~there:
                return None
            levels.append((end, there ^ further))
            there, at = further, end
        return levels

    def _alike(self, chain: Sequence[int], at: int, there: int) -> int:
        """Return the index after the last block that the same instances hold, because chains are evicted from their
        end."""
        of, further = self._of, range(at + 1, len(chain))
        return at + 1 + bisect_left(further, True, key=lambda place: of.get(chain[place]) != there)


@dataclass(slots=True)
class KnownBlocks:
    """The blocks of an instance. If there are many instances, it follows the engine's pool."""

    endpoint: SimEndpoint
    bit: int
    holders: Holders
    fresh: dict[SimCall, Sequence[int]] = field(default_factory=dict)  # blocks of each prompt that is being computed
    expected: Counter[int] = field(default_factory=Counter)  # count of all these blocks

    def stored(self, hashes: Sequence[int]) -> None:
        self.holders.add(hashes, self.bit)

    def removed(self, hashes: Sequence[int]) -> None:
        for block in hashes:
            if block not in self.expected:
                self.holders.discard(block, self.bit)

    def expect(self, call: SimCall) -> None:
        fresh = self.fresh[call] = call.chain[self.endpoint.engine.pool.held(call.chain) :]
        self.expected.update(fresh)
        if self.endpoint.engine.pool.follower is self:
            self.holders.add(fresh, self.bit)

    def began(self, call: SimCall) -> None:
        expected, pool = self.expected, self.endpoint.engine.pool
        fresh = self.fresh.pop(call)
        for block in fresh:
            left = expected.pop(block) - 1
            if left:
                expected[block] = left
        if pool.follower is self:
            self.removed([block for block in fresh if not pool.holds(block)])

    def held(self, chain: Sequence[int]) -> int:
        """Count the leading blocks that will be present when a request sent now is admitted."""
        held = self.endpoint.engine.pool.held(chain)
        while held < len(chain) and chain[held] in self.expected:
            held += 1
        return held

    def by_tier(self, chain: Sequence[int]) -> list[int]:
        """Count these blocks on device, in host memory and on disk."""
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
        """Follow the endpoints. `block_size`: tokens per block of the chains."""
        self._holders = Holders()
        self._known = [KnownBlocks(endpoint, 1 << place, self._holders) for place, endpoint in enumerate(endpoints)]
        self._instances = {known.endpoint.id: known for known in self._known}
        self._names = list(self._instances)
        self._bits = {name: known.bit for name, known in self._instances.items()}
        self._block_size = block_size
        self._has_tiers = any(endpoint.model.tiers is not None for endpoint in endpoints)
        self._follows = len(self._known) > FOLLOWED_ABOVE and not self._has_tiers
        if self._follows:
            for known in self._known:
                known.endpoint.engine.pool.follower = known

    def held(self, call: SimCall) -> Held:
        # An engine computes at least one prompt token, to produce the first new one.
        size = self._block_size
        chain = call.chain[: (call.request.input_tokens - 1) // size]
        if not self._has_tiers:
            levels = self._holders.held(chain) if self._follows else None
            if levels is not None:
                return HeldByLevel([(blocks * size, mask) for blocks, mask in levels], self._names, self._bits), None
            each = ((name, known.held(chain)) for name, known in self._instances.items())
            return {name: blocks * size for name, blocks in each if blocks}, None
        tiers = {}
        for name, known in self._instances.items():
            device, host, disk = known.by_tier(chain)
            if device or host or disk:
                tiers[name] = device * size, host * size, disk * size
        return {name: sum(tokens) for name, tokens in tiers.items()}, tiers

    def sent(self, call: SimCall, instance: str) -> None:
        self._instances[instance].expect(call)

    def began(self, call: SimCall, instance: str) -> None:
        self._instances[instance].began(call)

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        """Do nothing, because the index already knows."""
