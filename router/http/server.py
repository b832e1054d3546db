"""An HTTP server on listening sockets, which ends without losing a request."""

import asyncio
import contextlib
import socket
from collections.abc import Coroutine, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

from router.http.client import ClientConnection, IncomingRequest
from router.http.protocol import HttpProtocol
from router.timers import Deadlines

BACKLOG = 2048
LINGER_S = 0.2  # at the end: for requests that were on their way on kept connections
CANCELLED_S = 1.0  # for requests that were cancelled at the end, to say so to their clients


class Application(Protocol):
    def handle(self, incoming: IncomingRequest, client: ClientConnection) -> Coroutine[Any, Any, None]: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class HttpServer:
    def __init__(self, app: Application, grace_s: float) -> None:
        self._app = app
        self._grace_s = grace_s
        self._sockets: Sequence[socket.socket] = ()
        self._servers: list[asyncio.Server] = []
        self.handle = app.handle
        self.connections: set[HttpProtocol] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.closing = False
        self._empty = asyncio.Event()  # closing, and no connection is left

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @cached_property
    def deadlines(self) -> Deadlines[HttpProtocol]:
        return Deadlines(self.loop, HttpProtocol.expire)

    def _protocol(self) -> HttpProtocol:
        return HttpProtocol(self)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        await self._app.start()
        self._sockets = sockets
        for sock in sockets:
            self._servers.append(await self.loop.create_server(self._protocol, sock=sock, backlog=BACKLOG))

    async def stop(self) -> None:
        """Take no new connections; finish the requests that have come, and say in each response that it is the last."""
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

    def leave(self, connection: HttpProtocol) -> None:
        self.connections.discard(connection)
        if self.closing and not self.connections:
            self._empty.set()


def waiting(listener: socket.socket) -> Iterator[socket.socket]:
    """Connections that the kernel made and the loop did not accept yet: closing the listener would reset them."""
    listener.setblocking(False)
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        yield accepted


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket; `shared` with other routers, which take connections in turn. OSError when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError):
        listener.close()
        raise
    return listener
