"""Keep-alive connections to one engine; the most recently used one is taken first."""

import asyncio
import ssl
from math import inf
from typing import Final
from urllib.parse import urlsplit

from router.contract.net.addresses import ENGINES
from router.contract.net.engine_tls import PLAIN, EngineTls, context
from router.contract.net.exhaustion import is_exhausted
from router.contract.net.outgoing import connect
from router.contract.net.tls_refusal import TlsRefused
from router.contract.net.whereabouts import Missing
from router.timers import Deadlines
from router.upstream.connection import Connection
from router.upstream.errors import ConnectFailed, ConnectionBroken, KeyMissing, RouterExhausted

MAX_IDLE: Final = 512  # connections kept per instance
IDLE_S = 30.0


class ConnectionPool:
    def __init__(self, url: str, tls: EngineTls = PLAIN) -> None:
        parts = urlsplit(url)
        self.url = url
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.authority = parts.netloc.rpartition("@")[2].encode()
        self.base = parts.path.rstrip("/").encode()  # prefix of every request's path
        self.tls = tls
        self._is_secure = parts.scheme == "https"
        self._idle: list[Connection] = []
        self.connections: set[Connection] = set()
        self._closed = False
        self.deadlines: Deadlines[Connection] = Deadlines(None, Connection.expire)  # limits on a response's first bytes
        self._connects: Deadlines[asyncio.Timeout] = Deadlines(None, _end_now)

    async def open(
        self, request: bytes, body: bytes = b"", *, connect_timeout_s: float, first_byte_timeout_s: float
    ) -> Connection:
        """Send a request, followed by `body`, and return the connection once the response has begun. The caller
        releases it."""
        secure = self._context() if self._is_secure else None
        reused = self._reuse(secure)
        while True:
            connection = reused or await self._connect(connect_timeout_s, secure)
            connection.start(request, first_byte_timeout_s, body)
            try:
                while (more := connection.begun()) is not None:
                    await more
            except BaseException as error:
                connection.release()
                if reused is None or not (isinstance(error, ConnectionBroken) and connection.stale):
                    raise
                # The engine closed it before the request arrived; other idle connections are as old as this one.
                reused = None
            else:
                return connection
            finally:
                self.deadlines.drop(connection, None)

    def _context(self) -> ssl.SSLContext:
        """Return the TLS context for the current certificates."""
        try:
            return context(self.tls)
        except Missing as missing:
            raise KeyMissing(f"no connection to {self.url}: {missing}") from None
        except TlsRefused as error:
            raise ConnectFailed(f"no connection to {self.url}: {error.strerror or error}") from None

    def _reuse(self, secure: ssl.SSLContext | None) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.secure is not secure:
                connection.abort()
            elif not connection.closed:
                return connection
        return None

    async def _connect(self, timeout_s: float, secure: ssl.SSLContext | None) -> Connection:
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
        try:
            async with limit:
                self._connects.start(limit, timeout_s)
                where = (self.host, self.port, ENGINES, secure, self.tls.name)
                _, connection = await connect(lambda: Connection(self, loop), *where)
        except TimeoutError:
            raise ConnectFailed(f"no connection to {self.url} within {timeout_s:g} s") from None
        except OSError as error:
            kind = RouterExhausted if is_exhausted(error) else ConnectFailed
            raise kind(f"no connection to {self.url}: {error.strerror or error}") from None
        finally:
            self._connects.stop(limit)
        connection.secure = secure
        return connection

    def secure_by(self, tls: EngineTls) -> None:
        """Use these certificates for every request from now on."""
        if tls != self.tls:
            self.tls = tls
            self.close_all_idle()

    def give_back(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= MAX_IDLE:
            connection.abort()
            return
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not connection.busy and connection in self._idle:
            self._idle.remove(connection)

    def close_idle(self, now: float, idle_s: float = IDLE_S) -> None:
        """Close connections idle for `idle_s`; `now` is the loop's time. The newest are at the end."""
        while self._idle and now - self._idle[0].idle_since >= idle_s:
            self._idle.pop(0).abort()

    def close_all_idle(self) -> None:
        self.close_idle(0.0, -inf)

    def check_host(self) -> None:
        """Check the host. If it is unreachable, also close the idle connections, which would notice only later."""
        if not all([connection.check_host() for connection in list(self.connections)]):
            self.close_all_idle()

    def close(self, running_too: bool = False) -> None:
        """Close the idle connections now, and the others as they end. With `running_too`, close all of them now,
        because the engine has ended."""
        self._closed = True
        for connection in list(self.connections):
            if running_too or not connection.busy:
                connection.abort()
        self._idle.clear()


def _end_now(limit: asyncio.Timeout) -> None:
    limit.reschedule(asyncio.get_running_loop().time())
