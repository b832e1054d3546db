"""Cheap GET requests over kept connections.

With eight instances httpx takes six times as long, with a hundred it does not finish (bench/fleet_scrape.py).

ProbeError
├── Slow                no whole answer in time
└── ConnectionRefused   no connection, or it broke
"""

import asyncio
import contextlib
import ssl
from urllib.parse import SplitResult, urlsplit

from router.contract.http_client import HttpClientProtocol


class ProbeError(Exception):
    pass


class Slow(ProbeError):
    pass


class ConnectionRefused(ProbeError):
    pass


class _ProbeConnection(HttpClientProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        super().__init__(loop)

    def lost(self, exc: Exception | None) -> ConnectionRefused:
        return ConnectionRefused(f"the connection broke{f': {exc}' if exc else ''}")

    def invalid(self, why: str) -> ConnectionRefused:
        return ConnectionRefused(f"not HTTP: {why}")

    async def get(self, path: str, host: str) -> tuple[int, bytes]:
        self._parts.clear()
        self.send(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        try:
            await self.whole()
        finally:
            self.finish()
        return self.status, b"".join(self._parts)


class Prober:
    """Kept connections by URL; belongs to one event loop."""

    def __init__(self) -> None:
        self._kept: dict[str, _ProbeConnection] = {}

    async def get(self, url: str, timeout_s: float) -> tuple[int, bytes]:
        """(status, body). Slow or ConnectionRefused when there is no answer; the connection is then closed."""
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
        if kept is not None and not kept.closed:
            with contextlib.suppress(ConnectionRefused):  # a server may close a kept connection at any time
                return await kept.get(parts.path, parts.netloc)
        connection = await self._connect(parts)
        self._kept[url] = connection
        return await connection.get(parts.path, parts.netloc)

    async def _connect(self, parts: SplitResult) -> _ProbeConnection:
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _ProbeConnection(loop), parts.hostname or "", port, ssl=secure
        )
        return connection

    def forget(self, url: str) -> None:
        connection = self._kept.pop(url, None)
        if connection is not None:
            connection.abort()

    def keep_only(self, urls: set[str]) -> None:
        for url in self._kept.keys() - urls:
            self.forget(url)
