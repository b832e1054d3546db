"""A response as the relay reads it: from one connection to an engine, or combined from two."""

from typing import Protocol

from router.contract.net.http_client import Headers
from router.upstream.connection import EventSink, Sink


class EngineResponse(Protocol):
    status: int
    headers: Headers

    @property
    def done(self) -> bool: ...

    def read_now(self) -> bytes: ...

    async def read(self) -> bytes: ...

    async def pour(self, sink: Sink, event_sink: EventSink | None = None) -> bytes: ...

    def resume(self) -> None: ...

    def check_quiet(self, passed_s: float, limit_s: float, *, is_early: bool = False) -> bool: ...

    def release(self) -> None: ...
