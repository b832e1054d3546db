"""Ends responses that stop before their content or in the middle: one check of all responses per second, without work
per chunk. It also reports the engines that make progress."""

from typing import Protocol

from router.upstream.response import EngineResponse

CHECK_S = 1.0


class Awaited(Protocol):
    """The waiting side of an answer."""

    @property
    def has_content(self) -> bool: ...

    def goes_on(self) -> None: ...


class Stalls:
    def __init__(self) -> None:
        # (who waits, limit of a silence in s, limit in s until a stream's first content; 0 without a stream)
        self._limits: dict[EngineResponse, tuple[Awaited, float, float]] = {}
        self.watch = self._limits.__setitem__
        self.forget = self._limits.pop

    def check(self) -> None:
        """Fail responses that have been silent, or without content, for their limit; called every CHECK_S."""
        for connection, (awaited, silent_s, content_s) in self._limits.items():
            is_early = content_s > 0 and not awaited.has_content
            limit_s = content_s if is_early else silent_s
            if connection.check_quiet(CHECK_S, limit_s, is_early=is_early):
                awaited.goes_on()
