"""A lean streaming HTTP/1.1 client on keep-alive connections.
A replay streams thousands of tokens per second next to the engines that it measures, so nothing is parsed per token:
the client records when the first content and the last byte arrived, and keeps the end of the response.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from router.contract.answer import answers
from router.contract.net.addresses import ENGINES
from router.contract.net.http_client import HttpClientProtocol
from router.contract.net.outgoing import connect

KEEP_BYTES = 4_096  # bytes kept from the end of a response: a stream's usage chunk or an error's JSON
IDLE_KEPT = 256


class NoAnswer(Exception):
    """The server could not be reached, or the connection ended before the answer was complete."""


@dataclass(slots=True)
class ReplayAnswer:
    """An HTTP response; times are of time.perf_counter()."""

    sent_at: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)  # names in lower case
    first_at: float = 0.0  # first content of a stream, otherwise first byte of the body; 0 without any
    last_at: float = 0.0  # time of the last byte
    tail: bytearray = field(default_factory=bytearray)  # the last `keep` bytes or more


class _ReplayConnection(HttpClientProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.answer = ReplayAnswer(0.0)
        self._keep = KEEP_BYTES
        self._streaming = False

    def lost(self, exc: Exception | None) -> NoAnswer:
        return NoAnswer(f"the connection ended before the answer: {exc or 'closed by the server'}")

    def invalid(self, why: str) -> NoAnswer:
        return NoAnswer(f"the answer is not HTTP: {why}")

    async def exchange(self, request: bytes, keep: int) -> ReplayAnswer:
        self._keep, self._streaming = keep, False
        self.answer = ReplayAnswer(time.perf_counter())
        self.send(request)
        await self.whole()
        return self.answer

    def data_received(self, data: bytes) -> None:
        if self.busy:
            self.answer.last_at = time.perf_counter()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.answer.status = self.status
        self.answer.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        self._streaming = self.answer.headers.get("content-type", "").startswith("text/event-stream")

    def on_body(self, body: bytes) -> None:
        answer = self.answer
        answer.tail += body
        if not answer.first_at and (not self._streaming or _has_content(answer.tail)):
            answer.first_at = answer.last_at
        if len(answer.tail) > 2 * self._keep:
            del answer.tail[: -self._keep]


def _has_content(beginning: bytearray) -> bool:
    return any(answers.sign(event)[0] == "content" for event in answers.events(bytes(beginning)))


class ReplayClient:
    """A client of one server."""

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
        """Return the whole response, of any status. Raise NoAnswer, and TimeoutError after `timeout_s`."""
        message = self._head(method, path, len(body), headers or {}) + body
        async with asyncio.timeout(timeout_s):
            while self._idle:
                connection = self._idle.pop()
                if connection.closed:
                    continue
                try:
                    return await self._exchange(connection, message, keep)
                except NoAnswer:
                    # Only if the connection was stale is it certain that the server received nothing
                    if not connection.stale:
                        raise
            return await self._exchange(await self._connect(), message, keep)

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
                _, connection = await connect(lambda: _ReplayConnection(loop), self.host, self.port, ENGINES)
        except (OSError, TimeoutError) as error:
            raise NoAnswer(f"no connection to {self.host}:{self.port}: {error or 'timed out'}") from None
        return connection

    async def _exchange(self, connection: _ReplayConnection, message: bytes, keep: int) -> ReplayAnswer:
        try:
            return await connection.exchange(message, keep)
        finally:  # After a cancellation, closing the connection makes the server stop.
            if connection.finish() and len(self._idle) < IDLE_KEPT:
                self._idle.append(connection)
            else:
                connection.abort()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()
