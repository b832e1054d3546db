"""The end of responses that stop in the middle: one check of all responses per second, no work per chunk. It also
reports whose engines continue."""

from collections.abc import Callable

from router.upstream.response import EngineResponse

CHECK_S = 1.0


class Stalls:
    def __init__(self) -> None:
        # (limit in s, callback of each check after content)
        self._limits: dict[EngineResponse, tuple[float, Callable[[], None]]] = {}
        self.watch = self._limits.__setitem__
        self.forget = self._limits.pop

    def check(self) -> None:
        """Fail the responses that were silent for their limit; called every CHECK_S."""
        for connection, (limit_s, goes_on) in self._limits.items():
            if connection.check_quiet(CHECK_S, limit_s):
                goes_on()
