"""How much of a prompt each instance holds, as the router knows it: by KV events where there are any, else by the
approximate index."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from controlplane.twin.simulation.approximate_view import ApproximateView
from controlplane.twin.simulation.call import SimCall
from controlplane.twin.simulation.kv_event_view import KvEventView
from controlplane.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.request import EngineRequest


class Index(Protocol):
    def held(self, call: SimCall) -> Mapping[str, int]:
        """Tokens by instance; instances without any are left out."""

    def sent(self, call: SimCall, instance: str) -> None:
        """The instance gets the prompt to compute."""

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        """It was answered."""

    def began(self, call: SimCall, instance: str) -> None:
        """The prompt has been computed there."""


class MixedIndex:
    """Of a fleet in which only some instances publish KV events."""

    def __init__(self, exact: Sequence[SimEndpoint], others: Sequence[SimEndpoint], block_size: int) -> None:
        self._exact, self._approximate = KvEventView(exact, block_size), ApproximateView(others, block_size)
        self._of: dict[str, Index] = dict.fromkeys((endpoint.name for endpoint in exact), self._exact)
        self._of |= dict.fromkeys((endpoint.name for endpoint in others), self._approximate)

    def held(self, call: SimCall) -> Mapping[str, int]:
        return {**self._approximate.held(call), **self._exact.held(call)}

    def sent(self, call: SimCall, instance: str) -> None:
        self._of[instance].sent(call, instance)

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        self._of[instance].answered(call, instance, work)

    def began(self, call: SimCall, instance: str) -> None:
        self._of[instance].began(call, instance)


def index_of(endpoints: Sequence[SimEndpoint], block_size: int) -> Index:
    exact = [endpoint for endpoint in endpoints if endpoint.model.kv_events]
    others = [endpoint for endpoint in endpoints if not endpoint.model.kv_events]
    if not exact:
        return ApproximateView(others, block_size)
    return MixedIndex(exact, others, block_size) if others else KvEventView(exact, block_size)
