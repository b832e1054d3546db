"""How much of a prompt each instance holds, as the router knows it: told by those that publish KV events, guessed of
the others."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from controlplane.twin.simulation.approximate_view import Guesses
from controlplane.twin.simulation.call import Call
from controlplane.twin.simulation.kv_event_view import Told
from controlplane.twin.simulation.sim_endpoint import Seat
from fleet.engine.request import Request


class Index(Protocol):
    def held(self, call: Call) -> Mapping[str, int]:
        """Tokens by instance; those that hold nothing are left out."""

    def sent(self, call: Call, instance: str) -> None:
        """The instance gets the prompt to compute."""

    def answered(self, call: Call, instance: str, work: Request) -> None:
        """It has been answered."""

    def began(self, call: Call, instance: str) -> None:
        """The prompt has been computed there."""


class Both:
    """Of a fleet in which some tell and some do not."""

    def __init__(self, telling: Sequence[Seat], silent: Sequence[Seat], block_size: int) -> None:
        told, guesses = Told(telling, block_size), Guesses(silent, block_size)
        self._of: dict[str, Index] = dict.fromkeys((seat.name for seat in telling), told)
        self._of |= dict.fromkeys((seat.name for seat in silent), guesses)
        self._told, self._guesses = told, guesses

    def held(self, call: Call) -> Mapping[str, int]:
        return {**self._guesses.held(call), **self._told.held(call)}

    def sent(self, call: Call, instance: str) -> None:
        self._of[instance].sent(call, instance)

    def answered(self, call: Call, instance: str, work: Request) -> None:
        self._of[instance].answered(call, instance, work)

    def began(self, call: Call, instance: str) -> None:
        self._of[instance].began(call, instance)


def index_of(seats: Sequence[Seat], block_size: int) -> Index:
    telling = [seat for seat in seats if seat.model.kv_events]
    silent = [seat for seat in seats if not seat.model.kv_events]
    if not telling:
        return Guesses(silent, block_size)
    return Told(telling, block_size) if not silent else Both(telling, silent, block_size)
