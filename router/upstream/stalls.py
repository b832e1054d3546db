"""Ends responses that stop in the middle, and tells whose engines go on: one check of all of them each second, no work
per chunk."""

from collections.abc import Callable

from router.upstream.response import EngineResponse

CHECK_S = 1.0


class Stalls:
    def __init__(self) -> None:
        # s, and what is called at each check before which content has come
        self._limits: dict[EngineResponse, tuple[float, Callable[[], None]]] = {}
        self.watch = self._limits.__setitem__
        self.forget = self._limits.pop

    def check(self) -> None:
        """Called every CHECK_S: responses that were silent for their limit fail."""
        for connection, (limit_s, goes_on) in self._limits.items():
            if connection.check_quiet(CHECK_S, limit_s):
                goes_on()
