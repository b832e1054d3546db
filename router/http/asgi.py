"""A request and its answer over ASGI, for servers other than the router's own."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from router.http.body import MAX_BODY, ClientGone, too_large, too_many
from router.http.client import ClientConnection, IncomingRequest, client_of
from router.http.clients import ClientConnections, HeldBody

Message = dict[str, Any]  # a message or scope of ASGI
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Handler = Callable[[IncomingRequest, ClientConnection], Coroutine[Any, Any, None]]

Step = Callable[[], Awaitable[None]]

HIGH_WATER = 64 * 1024  # bytes buffered for the client


class AsgiClient:
    takes_chunks = False  # ASGI has no framing
    received: bytes | None = None

    def __init__(self, receive: Receive, send: Send, clients: ClientConnections, incoming: IncomingRequest) -> None:
        self.gone = False
        self._held, self._incoming = HeldBody(clients), incoming
        self._full = False
        self.on_room: Callable[[], None] | None = None
        self.extra = b""
        self._receive = receive
        self._send = send
        self._out: deque[Message] = deque()
        self._waiting = 0  # bytes
        self._answered = False
        self._news = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None

    async def serve(self, handler: Handler) -> None:
        work = self._work = asyncio.create_task(handler(self._incoming, self))
        work.add_done_callback(lambda _: self._news.set())
        try:
            await self._pass_on(work)
        except asyncio.CancelledError:  # the server is stopping
            work.cancel()
            await self._pass_on(work)
        finally:
            self._held.release()
            if self._watcher is not None:
                self._watcher.cancel()
        await work

    async def _pass_on(self, work: asyncio.Task[None]) -> None:
        while self._out or not work.done():
            while self._out:
                message = self._out.popleft()
                await self._send(message)
                self._sent(len(message.get("body", b"")))
            if not work.done():
                self._news.clear()
                await self._news.wait()

    def _sent(self, size: int) -> None:
        self._waiting -= size
        if self._full and self._waiting < HIGH_WATER:
            self._full = False
            if self.on_room is not None:
                self.on_room()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._answered:
            self.gone = True
            if self._work is not None:
                self._work.cancel()

    def _put(self, message: Message) -> None:
        self._out.append(message)
        self._news.set()

    # The handler's side

    async def read(self) -> bytes:
        parts, size, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY:
                raise too_large()
            if not self._held.grow(client_of(self._incoming), size):
                raise too_many()
            more = message.get("more_body", False)
        self._watcher = asyncio.create_task(self._watch())
        return b"".join(parts)

    def start(self, status: int, lines: bytes) -> None:
        self._put({"type": "http.response.start", "status": status, "headers": _headers(lines + self.extra)})

    def write(self, data: bytes) -> bool:
        self._waiting += len(data)
        self._full = self._waiting >= HIGH_WATER
        self._put({"type": "http.response.body", "body": data, "more_body": True})
        return self._full

    def write_chunk(self, chunk: bytes) -> bool:
        raise NotImplementedError("the server frames the body itself")

    def end(self, data: bytes = b"") -> None:
        self._answered = True
        self._waiting += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": False})


async def lifespan(receive: Receive, send: Send, start: Step, stop: Step) -> None:
    await receive()
    fault = await _fault(start)
    if fault:
        await send({"type": "lifespan.startup.failed", "message": f"router: {fault}"})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await stop()
    await send({"type": "lifespan.shutdown.complete"})


async def _fault(start: Step) -> str:
    try:
        await start()
    except ValueError as error:
        return str(error)
    return ""


def _headers(lines: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines.split(b"\r\n") if line)]
