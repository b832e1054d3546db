"""Ends responses that stop in the middle: one check of all of them each second, no work per chunk."""

from router.upstream.response import EngineResponse

CHECK_S = 1.0


class Stalls:
    def __init__(self) -> None:
        self._limits: dict[EngineResponse, float] = {}  # s

    def watch(self, connection: EngineResponse, limit_s: float) -> None:
        self._limits[connection] = limit_s

    def forget(self, connection: EngineResponse) -> None:
        self._limits.pop(connection, None)

    def check(self) -> None:
        """Called every CHECK_S: responses that were silent for their limit fail."""
        for connection, limit_s in self._limits.items():
            connection.check_quiet(CHECK_S, limit_s)
