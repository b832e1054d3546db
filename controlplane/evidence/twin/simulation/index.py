"""Estimates the part of a prompt that each instance holds, as the router does: by KV events if there are any, otherwise
by the approximate index.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from controlplane.evidence.twin.simulation.call import SimCall
from controlplane.evidence.twin.simulation.kv_event_view import Held, KvEventView
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import VLLM
from router.prefix.approximate import PrefixIndex

# The router's approximate index, for instances without KV events, fed with the trace's blocks as they are sent
EPOCH = 1  # constant, because engines never restart in a simulation


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
        """Return tokens by instance, without zeros. Tiers are unknown."""
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
        # At least one token is computed, and a partial last block is never hit; neither means an eviction.
        is_complete = cached >= (work.prompt_tokens - 1) // size * size
        self._index.correct(instance, call.chain, len(call.chain) if is_complete else cached // size)

    def began(self, call: SimCall, instance: str) -> None:
        """Do nothing: a first token says nothing about the cache."""


class Index(Protocol):
    def held(self, call: SimCall) -> Held:
        """Return tokens by instance, without zeros; if some of the tokens may be below the device, also the counts on
        device, in host memory and on disk.
        """

    def sent(self, call: SimCall, instance: str) -> None:
        """Note that the prompt was sent to the instance."""

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        """Note that the instance answered the request."""

    def began(self, call: SimCall, instance: str) -> None:
        """Note that the instance has computed the prompt."""


class NothingHeld:
    """The index for instances without a prefix cache."""

    def held(self, call: SimCall) -> Held:
        return {}, None

    def sent(self, call: SimCall, instance: str) -> None:
        """Do nothing: the instance keeps nothing of the prompt."""

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        """Do nothing: there is nothing to learn."""

    def began(self, call: SimCall, instance: str) -> None:
        """Do nothing: a first token says nothing about the cache."""


class MixedIndex:
    """The index of a fleet in which only some instances publish KV events or cache prefixes."""

    def __init__(self, views: Mapping[Index, Sequence[SimEndpoint]]) -> None:
        self._views = views
        self._of = {endpoint.id: view for view, endpoints in views.items() for endpoint in endpoints}

    def held(self, call: SimCall) -> Held:
        held: dict[str, int] = {}
        tiers: dict[str, tuple[int, int, int]] | None = None
        for view in self._views:
            tokens, by_tier = view.held(call)
            held |= tokens
            if by_tier is not None:
                tiers = (tiers or {}) | dict(by_tier)
        return held, tiers

    def sent(self, call: SimCall, instance: str) -> None:
        self._of[instance].sent(call, instance)

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        self._of[instance].answered(call, instance, work)

    def began(self, call: SimCall, instance: str) -> None:
        self._of[instance].began(call, instance)


def index_of(endpoints: Sequence[SimEndpoint], block_size: int) -> Index:
    caching = [endpoint for endpoint in endpoints if endpoint.model.limits.batching == VLLM]
    exact = [endpoint for endpoint in caching if endpoint.model.kv_events]
    others = [endpoint for endpoint in caching if not endpoint.model.kv_events]
    views: dict[Index, Sequence[SimEndpoint]] = {}
    if exact:
        views[KvEventView(exact, block_size)] = exact
    if others or not endpoints:
        views[ApproximateView(others, block_size)] = others
    if len(caching) < len(endpoints):
        views[NothingHeld()] = [endpoint for endpoint in endpoints if endpoint not in caching]
    return MixedIndex(views) if len(views) > 1 else next(iter(views))
