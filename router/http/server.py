"""An HTTP server on listening sockets that can stop without losing a request."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Coroutine, Iterator, Sequence
from functools import cached_property
from itertools import islice
from math import inf
from typing import Any, Protocol

from router.http.client import ClientConnection, IncomingRequest
from router.http.clients import ClientConnections, UnreadAnswers
from router.http.protocol import HttpProtocol
from router.timers import Deadlines

BACKLOG = 2048
LINGER_S = 0.2  # time at shutdown in which requests already sent on idle connections may arrive
SEARCHED = 64  # oldest connections scanned for an idle one
NEW_S = 0.1  # time for a new connection to send its head before it may be closed in favour of others
UNSENT = 64 * 1024  # unsent bytes per connection in the kernel, whose own limit is 4 MB
CANCELLED_S = 1.0  # time at shutdown for cancelled requests to notify their clients


class Application(Protocol):
    def handle(self, incoming: IncomingRequest, client: ClientConnection) -> Coroutine[Any, Any, None]: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class HttpServer:
    def __init__(self, app: Application, grace_s: float, clients: ClientConnections | None = None) -> None:
        self._app = app
        self._grace_s = grace_s
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self.handle = app.handle
        self.clients = clients or ClientConnections()
        self.connections: set[HttpProtocol] = self.clients.open
        # Connections without a complete head, oldest first; s, loop time
        self.newcomers: dict[HttpProtocol, float] = {}
        self.unread = UnreadAnswers(self.clients)
        self.tasks: set[asyncio.Task[None]] = set()
        self.closing = False
        self._empty = asyncio.Event()  # set while the server closes and no connection is left

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @cached_property
    def deadlines(self) -> Deadlines[HttpProtocol]:
        """Deadlines for heads and bodies from clients."""
        return Deadlines(self.loop, HttpProtocol.expire)

    @cached_property
    def stalls(self) -> Deadlines[HttpProtocol]:
        """Deadlines for clients that do not read."""
        return Deadlines(self.loop, HttpProtocol.check_stall)

    def _protocol(self) -> HttpProtocol:
        return HttpProtocol(self)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        self.loop.set_exception_handler(_unless_client_left)
        await self._app.start()
        for sock in sockets:
            await self.listen(sock)

    async def listen(self, sock: socket.socket) -> None:
        self._sockets.append(sock)
        self._servers.append(await self.loop.create_server(self._protocol, sock=sock, backlog=BACKLOG))

    async def stop(self) -> None:
        """Accept no new connections; finish received requests, with `connection: close` in each response."""
        self.closing = True
        for sock in self._sockets:
            for accepted in waiting(sock):
                await self.loop.connect_accepted_socket(self._protocol, accepted)
        for server in self._servers:
            server.close()
        if self.connections:
            await self._finish_connections()
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(list(self.tasks), timeout=CANCELLED_S)
        await self._app.stop()

    async def _finish_connections(self) -> None:
        await asyncio.sleep(LINGER_S)
        for connection in list(self.connections):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                await self._empty.wait()

    def make_room(self) -> bool:
        """Make room for a connection. Return False at the limit if no connection can be closed."""
        if len(self.connections) < self.clients.limit:
            return True
        spare = self._spare()
        self.clients.full(refused=spare is None)
        if spare is None:
            return False
        self.connections.discard(spare)
        self.newcomers.pop(spare, None)
        self.deadlines.stop(spare)
        spare.make_way()
        return True

    def _spare(self) -> HttpProtocol | None:
        """Return a connection to close: the oldest without a complete head, if it has had enough time or if there are
        many; else the oldest idle one; else the oldest with a slow body."""
        newcomer, since = next(iter(self.newcomers.items()), (None, inf))
        if self.loop.time() - since > NEW_S or len(self.newcomers) > self.clients.limit / 2:
            return newcomer
        searched = [each for each in islice(self.deadlines.items(), SEARCHED) if each not in self.newcomers]
        idle = next((each for each in searched if each.is_idle), newcomer)
        return idle or next((each for each in searched if each.is_slow), None)

    def leave(self, connection: HttpProtocol) -> None:
        self.connections.discard(connection)
        self.newcomers.pop(connection, None)
        self.unread.forget(connection)
        if self.closing and not self.connections:
            self._empty.set()


_CLIENT_LEFT = (errno.ENOTCONN, errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EHOSTUNREACH)


def _unless_client_left(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore uvloop's report that a peer closed its socket, which is not an error of the router."""
    error = context.get("exception")
    if not (isinstance(error, OSError) and error.errno in _CLIENT_LEFT and "transport" in context):
        loop.default_exception_handler(context)


def waiting(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield connections that the loop has not accepted yet: closing the listener would reset them."""
    listener.setblocking(False)
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        yield accepted


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a bound socket, possibly `shared` by several routers. Raise OSError if it cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted connections inherit the option
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError):
        listener.close()
        raise
    return listener
