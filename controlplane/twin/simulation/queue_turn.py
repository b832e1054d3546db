"""What a request in the router's queue waits for."""

from collections.abc import Callable

from controlplane.twin.simulation.call import SimCall


class SimWakeup:
    """Set by the queue when there may be room; whoever it was made for hears of it."""

    __slots__ = ("_call", "_done", "_hear")

    def __init__(self, call: SimCall, hear: Callable[[SimCall], None]) -> None:
        self._call = call
        self._hear = hear
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: None, /) -> None:
        self._done = True
        self._hear(self._call)

    def stop(self) -> None:
        """It waits no longer."""
        self._done = True
