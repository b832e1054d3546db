"""Cheap GET requests over kept connections.

With eight instances httpx takes six times as long, with a hundred it does not finish (bench/fleet_scrape.py).

ProbeError
├── Slow                no whole answer in time
├── ConnectionRefused   no connection, or it broke
│   └── NotTrusted      TLS refuses one side
├── AnswerRefused       the answer is larger than allowed, or not HTTP
└── NotAsked            this process cannot open a connection; the other side's state is unknown
"""

import asyncio
import ssl
from urllib.parse import SplitResult, urlsplit

from router.contract.net.addresses import ENGINES
from router.contract.net.engine_tls import PLAIN, EngineTls, context
from router.contract.net.exhaustion import is_exhausted
from router.contract.net.http_client import MAX_HEAD, HttpClientProtocol
from router.contract.net.outgoing import connect
from router.contract.net.tls_refusal import TlsRefused, explained
from router.contract.net.whereabouts import Missing


class ProbeError(Exception):
    pass


class Slow(ProbeError):
    pass


class ConnectionRefused(ProbeError):
    pass


class NotTrusted(ConnectionRefused):
    """One side of the TLS connection rejected the other. A retry does not help until a certificate changes."""


class NotAsked(ProbeError):
    pass


class AnswerRefused(ConnectionRefused):
    """This process refused the answer, so a retry on a new connection would not help."""


LARGEST = 64 * 1024  # bytes of an answer, unless the caller allows more
# SGLang's path for probes (0.5.23). Its /health generates a token, which takes at least a second, even while its memory
# is released
READY = "/ready"


class _ProbeConnection(HttpClientProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, secure: ssl.SSLContext | None) -> None:
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        self._left = 0  # bytes of the answer that may still arrive
        self.secure = secure
        super().__init__(loop)

    def lost(self, exc: Exception | None) -> ConnectionRefused:
        if isinstance(exc, ssl.SSLError):
            return NotTrusted(explained(exc))
        return ConnectionRefused(f"the connection broke{f': {exc}' if exc else self.hint}")

    def invalid(self, why: str) -> AnswerRefused:
        return AnswerRefused(f"not HTTP: {why}")

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self.busy and self._left < 0:
            self._fail(AnswerRefused(f"larger than {self._largest} bytes"))
            self.abort()
            return
        super().data_received(data)

    async def get(self, path: str, host: str, largest: int, lines: bytes) -> tuple[int, bytes]:
        self._parts.clear()
        self._largest = largest
        self._left = largest + MAX_HEAD
        self.send(b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (path.encode(), host.encode(), lines))
        try:
            await self.whole()
            return self.status, b"".join(self._parts)
        finally:
            self.finish()
            self._parts.clear()


class Prober:
    """Keeps connections by URL; belongs to one event loop."""

    def __init__(self) -> None:
        self._kept: dict[str, _ProbeConnection] = {}

    async def get(
        self, url: str, timeout_s: float, largest: int = LARGEST, lines: bytes = b"", tls: EngineTls = PLAIN
    ) -> tuple[int, bytes]:
        """Return (status, body). Raise ProbeError if there is no answer; the connection is then closed.
        `timeout_s` limits the whole answer, even if it arrives byte by byte. `largest` is its size limit in bytes.
        `lines` holds additional header lines, such as an engine's key.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._get(url, largest, lines, tls)
        except (AnswerRefused, NotTrusted) as refusal:
            raise type(refusal)(f"GET {url}: {refusal}") from None
        except TimeoutError:
            self.forget(url)
            raise Slow(f"GET {url} took longer than {timeout_s:g} s") from None
        except OSError as error:
            kind = NotAsked if is_exhausted(error) else ConnectionRefused
            kind = NotTrusted if isinstance(error, TlsRefused | Missing) else kind
            raise kind(f"GET {url}: {error.strerror or error}") from None

    async def _get(self, url: str, largest: int, lines: bytes, tls: EngineTls) -> tuple[int, bytes]:
        parts = urlsplit(url)
        secure = context(tls) if parts.scheme == "https" else None
        if url in self._kept and self._kept[url].secure is not secure:
            self.forget(url)
        kept = self._kept.get(url)
        if kept is not None and not kept.closed:
            try:
                return await kept.get(parts.path, parts.netloc, largest, lines)
            except AnswerRefused:
                raise
            except ConnectionRefused:  # a server may close a kept connection at any time
                pass
        connection = await self._connect(parts, secure, tls.name)
        self._kept[url] = connection
        return await connection.get(parts.path, parts.netloc, largest, lines)

    async def _connect(self, parts: SplitResult, secure: ssl.SSLContext | None, name: str) -> _ProbeConnection:
        port = parts.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        host = parts.hostname or ""
        _, connection = await connect(lambda: _ProbeConnection(loop, secure), host, port, ENGINES, secure, name)
        return connection

    def forget(self, url: str) -> None:
        connection = self._kept.pop(url, None)
        if connection is not None:
            connection.abort()

    def keep_only(self, urls: set[str]) -> None:
        for url in self._kept.keys() - urls:
            self.forget(url)
