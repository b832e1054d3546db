"""How much of a prompt each instance holds, as the router knows it: told by those that publish KV events, guessed of
the others."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from controlplane.twin.simulation.approximate_view import ApproximateView
from controlplane.twin.simulation.call import SimCall
from controlplane.twin.simulation.kv_event_view import KvEventView
from controlplane.twin.simulation.sim_endpoint import SimEndpoint
from fleet.engine.request import EngineRequest


class Index(Protocol):
    def held(self, call: SimCall) -> Mapping[str, int]:
        """Tokens by instance; those that hold nothing are left out."""

    def sent(self, call: SimCall, instance: str) -> None:
        """The instance gets the prompt to compute."""

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        """It has been answered."""

    def began(self, call: SimCall, instance: str) -> None:
        """The prompt has been computed there."""


class Both:
    """Of a fleet in which some tell and some do not."""

    def __init__(self, telling: Sequence[SimEndpoint], silent: Sequence[SimEndpoint], block_size: int) -> None:
        told, guesses = KvEventView(telling, block_size), ApproximateView(silent, block_size)
        self._of: dict[str, Index] = dict.fromkeys((endpoint.name for endpoint in telling), told)
        self._of |= dict.fromkeys((endpoint.name for endpoint in silent), guesses)
        self._told, self._guesses = told, guesses

    def held(self, call: SimCall) -> Mapping[str, int]:
        return {**self._guesses.held(call), **self._told.held(call)}

    def sent(self, call: SimCall, instance: str) -> None:
        self._of[instance].sent(call, instance)

    def answered(self, call: SimCall, instance: str, work: EngineRequest) -> None:
        self._of[instance].answered(call, instance, work)

    def began(self, call: SimCall, instance: str) -> None:
        self._of[instance].began(call, instance)


def index_of(endpoints: Sequence[SimEndpoint], block_size: int) -> Index:
    telling = [endpoint for endpoint in endpoints if endpoint.model.kv_events]
    silent = [endpoint for endpoint in endpoints if not endpoint.model.kv_events]
    if not telling:
        return ApproximateView(silent, block_size)
    return KvEventView(telling, block_size) if not silent else Both(telling, silent, block_size)
