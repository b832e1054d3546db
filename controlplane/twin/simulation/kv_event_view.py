"""The router's exact index, for instances with KV events: the blocks that engines hold, and those being computed.

The router follows the events; here the engines' pools tell. The forecast of evictions until a request is admitted
(router/prefix/forecast/cache_forecast.py) is left out.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.twin.simulation.call import SimCall
from controlplane.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.request import EngineRequest

Held = tuple[Mapping[str, int], Mapping[str, tuple[int, int, int]] | None]  # see Index.held
FOLLOWED_ABOVE = 32  # instances; fewer are asked one after the other, which costs less than following them
TIER_OF = {"GPU": 0, "CPU": 1, "DISK": 2}  # by medium, as the router counts them


class Holders:
    """Of each block the places of the instances that hold or compute it: of many instances, most hold equally much."""

    def __init__(self) -> None:
        self._of: dict[int, set[int]] = {}

    def add(self, blocks: Iterable[int], place: int) -> None:
        of = self._of
        for block in blocks:
            if block in of:
                of[block].add(place)
            else:
                of[block] = {place}

    def discard(self, block: int, place: int) -> None:
        there = self._of.get(block)
        if there is not None:
            there.discard(place)
            if not there:
                del self._of[block]

    def held(self, chain: Sequence[int], size: int) -> dict[int, int] | None:
        """Tokens of the chain's leading blocks by place, `size` each. None where somebody lacks a block in the middle
        of what it holds."""
        there, at, found = self._of.get(chain[0]) if chain else None, 0, {}
        while there:
            end = self._alike(chain, at, len(there))
            last = self._of[chain[end - 1]]
            further = self._of.get(chain[end], set()) if end < len(chain) else set()
            if not (there <= last and further <= there):
                return None
            found.update(dict.fromkeys(there - further, end * size))
            there, at = further, end
        return found

    def _alike(self, chain: Sequence[int], at: int, count: int) -> int:
        """Behind the last block that as many hold as hold block `at`: chains are evicted from their end."""
        of, further = self._of, range(at + 1, len(chain))
        return at + 1 + bisect_left(further, True, key=lambda place: len(of.get(chain[place], ())) != count)


@dataclass(slots=True)
class KnownBlocks:
    """Of an instance, whose engine's pool it follows where there are many."""

    endpoint: SimEndpoint
    place: int
    holders: Holders
    fresh: dict[SimCall, Sequence[int]] = field(default_factory=dict)  # blocks of each prompt that is being computed
    expected: Counter[int] = field(default_factory=Counter)  # all of these

    def stored(self, hashes: Sequence[int]) -> None:
        self.holders.add(hashes, self.place)

    def removed(self, hashes: Sequence[int]) -> None:
        for block in hashes:
            if block not in self.expected:
                self.holders.discard(block, self.place)

    def expect(self, call: SimCall) -> None:
        fresh = self.fresh[call] = call.chain[self.endpoint.engine.pool.held(call.chain) :]
        self.expected.update(fresh)
        if self.endpoint.engine.pool.follower is self:
            self.holders.add(fresh, self.place)

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
        self._holders = Holders()
        self._known = [KnownBlocks(endpoint, place, self._holders) for place, endpoint in enumerate(endpoints)]
        self._instances = {known.endpoint.id: known for known in self._known}
        self._names = list(self._instances)
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
            held = self._holders.held(chain, size) if self._follows else None
            if held is None:
                each = ((place, known.held(chain)) for place, known in enumerate(self._known))
                held = {place: blocks * size for place, blocks in each if blocks}
            places = sorted(held)
            names = map(self._names.__getitem__, places)
            return dict(zip(names, map(held.__getitem__, places), strict=True)), None
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
        """The index already knew."""
