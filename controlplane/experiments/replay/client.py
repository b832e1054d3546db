"""A lean streaming HTTP/1.1 client: an asyncio.Protocol with httptools and connections that are kept alive.

A replay streams thousands of tokens a second and shares the machine with what it measures, so nothing is parsed per
token: the client notes when the first and the last byte of the answer came and keeps the answer's end.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

KEEP_BYTES = 4_096  # of an answer's end: the usage chunk of a stream, or an error's JSON
FIRST_TOKEN = b"data: {"  # a stream may begin with comments
IDLE_KEPT = 256


class NoAnswer(Exception):
    """The server could not be reached, or the connection ended before the answer did."""


@dataclass(slots=True)
class ReplayAnswer:
    """One HTTP answer; times are of time.perf_counter()."""

    sent_at: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)  # names in lower case
    first_at: float = 0.0  # first token of a stream, else first byte of the body; 0 when there was none
    last_at: float = 0.0  # last byte
    tail: bytearray = field(default_factory=bytearray)  # the last `keep` bytes, at least


class _ReplayConnection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.parser: Any = None
        self.answer: ReplayAnswer | None = None
        self.done: asyncio.Future[None] | None = None
        self.keep = KEEP_BYTES
        self.streaming = False
        self.reusable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def start(self, head: bytes, body: bytes, keep: int) -> asyncio.Future[None]:
        self.parser = httptools.HttpResponseParser(self)
        self.done = asyncio.get_running_loop().create_future()
        self.keep, self.streaming = keep, False
        self.answer = ReplayAnswer(time.perf_counter())
        self.transport.writelines((head, body))
        return self.done

    def data_received(self, data: bytes) -> None:
        if self.parser is None or self.answer is None:
            self.transport.abort()
            return
        self.answer.last_at = time.perf_counter()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._fail(f"the connection ended before the answer: {exc or 'closed by the server'}")

    def _fail(self, why: str) -> None:
        self.reusable = False
        if self.done is not None and not self.done.done():
            self.done.set_exception(NoAnswer(why))

    # httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self.answer is not None  # noqa: S101 - the parser lives only while a request does
        self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self.answer is not None  # noqa: S101
        self.answer.status = self.parser.get_status_code()
        self.streaming = self.answer.headers.get("content-type", "").startswith("text/event-stream")

    def on_body(self, body: bytes) -> None:
        answer = self.answer
        assert answer is not None  # noqa: S101
        answer.tail += body
        if not answer.first_at and (not self.streaming or FIRST_TOKEN in answer.tail):
            answer.first_at = answer.last_at
        if len(answer.tail) > 2 * self.keep:
            del answer.tail[: -self.keep]

    def on_message_complete(self) -> None:
        self.reusable = self.reusable and self.parser.should_keep_alive()
        if self.done is not None and not self.done.done():
            self.done.set_result(None)


class ReplayClient:
    """Requests to one server."""

    def __init__(self, base_url: str, connect_timeout_s: float = 5.0) -> None:
        parts = urlsplit(base_url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.base_path = parts.path.rstrip("/")
        self.connect_timeout_s = connect_timeout_s
        self._idle: list[_ReplayConnection] = []

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        keep: int = KEEP_BYTES,
        timeout_s: float = 600.0,
    ) -> ReplayAnswer:
        """The whole answer, of any status. NoAnswer when there is none; TimeoutError after `timeout_s`."""
        head = self._head(method, path, len(body), headers or {})
        async with asyncio.timeout(timeout_s):
            while self._idle:
                connection = self._idle.pop()
                if not connection.reusable:
                    continue
                try:
                    return await self._exchange(connection, head, body, keep)
                except NoAnswer:
                    # The server had closed the idle connection: only then is sending again sure to be the first time.
                    if connection.answer is not None and connection.answer.last_at:
                        raise
            return await self._exchange(await self._connect(), head, body, keep)

    def _head(self, method: str, path: str, length: int, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {self.base_path}{path} HTTP/1.1", f"host: {self.host}:{self.port}"]
        if length:
            lines += ["content-type: application/json", f"content-length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def _connect(self) -> _ReplayConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                _, connection = await loop.create_connection(_ReplayConnection, self.host, self.port)
        except (OSError, TimeoutError) as error:
            raise NoAnswer(f"no connection to {self.host}:{self.port}: {error or 'timed out'}") from None
        return connection

    async def _exchange(self, connection: _ReplayConnection, head: bytes, body: bytes, keep: int) -> ReplayAnswer:
        done = connection.start(head, body, keep)
        try:
            await done
        except asyncio.CancelledError:
            connection.transport.abort()  # the server sees at once that nobody wants the answer any more
            raise
        answer = connection.answer
        assert answer is not None  # noqa: S101
        connection.answer = connection.parser = None
        if connection.reusable and len(self._idle) < IDLE_KEPT:
            self._idle.append(connection)
        else:
            connection.transport.close()
        return answer

    def close(self) -> None:
        while self._idle:
            self._idle.pop().transport.abort()
