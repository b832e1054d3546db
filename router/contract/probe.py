"""GET over kept connections, as cheap as it can be: an asyncio.Protocol that feeds httptools.

With eight instances httpx takes six times as long, with a hundred it does not finish (bench/fleet_scrape.py).

ProbeError
├── Slow        no whole answer in time
└── Refused     no connection, or it broke
"""

import asyncio
import ssl
from typing import cast
from urllib.parse import SplitResult, urlsplit

import httptools


class ProbeError(Exception):
    pass


class Slow(ProbeError):
    pass


class ConnectionRefused(ProbeError):
    pass


class _ProbeConnection(asyncio.Protocol):
    """One request at a time on one kept connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # TCP; uvloop's is no subclass of it

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._fail(f"the connection broke{f': {error}' if error else ''}")

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self.close()

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        assert self._parser is not None  # noqa: S101 - it called us
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._parts)))
        if not self._parser.should_keep_alive():
            self.close()

    def _fail(self, text: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionRefused(text))

    async def get(self, path: str, host: str) -> tuple[int, bytes]:
        if self.transport is None:
            raise ConnectionRefused("the connection broke")
        self._parser, self._parts = httptools.HttpResponseParser(self), []
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return await self._answer

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class Prober:
    """Kept connections by URL; belongs to one event loop."""

    def __init__(self) -> None:
        self._kept: dict[str, _ProbeConnection] = {}

    async def get(self, url: str, timeout_s: float) -> tuple[int, bytes]:
        """(status, body). Slow or Refused when there is no answer; the connection is then given up."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._get(url)
        except TimeoutError:
            self.forget(url)
            raise Slow(f"GET {url} took longer than {timeout_s:g} s") from None
        except OSError as error:
            raise ConnectionRefused(f"GET {url}: {error.strerror or error}") from None

    async def _get(self, url: str) -> tuple[int, bytes]:
        parts = urlsplit(url)
        kept = self._kept.get(url)
        if kept is not None and kept.transport is not None:
            try:
                return await kept.get(parts.path, parts.netloc)
            except ConnectionRefused:
                pass  # the server may close a kept connection at any time; a fresh one tells
        connection = await self._connect(parts)
        self._kept[url] = connection
        return await connection.get(parts.path, parts.netloc)

    async def _connect(self, parts: SplitResult) -> _ProbeConnection:
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(_ProbeConnection, parts.hostname or "", port, ssl=secure)
        return protocol

    def forget(self, url: str) -> None:
        connection = self._kept.pop(url, None)
        if connection is not None:
            connection.close()

    def keep_only(self, urls: set[str]) -> None:
        for url in self._kept.keys() - urls:
            self.forget(url)
