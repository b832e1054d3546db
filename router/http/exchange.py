"""One request and its answer on a client's connection, written straight to the socket: ASGI would create dictionaries
and coroutines for each part. When a client leaves, uvloop closes the transport first and notifies the protocol in the
next iteration of the loop; a write in between raises. Such errors are ignored, because `client_left` follows.
"""

import asyncio
import http
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from router.http import errors
from router.http.body import MAX_BODY, ClientGone, too_large, too_many
from router.http.client import ClientConnection, IncomingRequest, client_of
from router.http.clients import SHARED_FROM, ClientConnections
from router.http.errors import ErrorResponse

STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}
BODILESS: Final = (204, 304)
BROKEN = ErrorResponse(500, "internal_error", "the router failed: its log says why")
PART = 1024  # bytes; shorter parts of a body are joined, because clients may send single bytes
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_LENGTH: Final = b"content-length: "
_LENGTH_LATER: Final = b"\n" + _LENGTH

log = logging.getLogger("weir.router")

Handler = Callable[[IncomingRequest, ClientConnection], Coroutine[Any, Any, None]]


# Distinguishes a client that has only finished sending from a client that is gone; the difference shows only when data
# is sent. The kernel of a client that is gone answers any data with a reset. An interim response (RFC 9110, 15.2) or,
# within a stream of events, a comment is data that a waiting client ignores.
PROBES_S = 5.0  # between two probes
ANSWER_S = 0.2  # time for the reset to arrive
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
COMMENT = b":\n\n"
_CLOSE_WAIT = 8  # linux/tcp_states.h: the other side has finished sending


def is_gone(transport: asyncio.BaseTransport) -> bool:
    """Return whether the connection was reset after the client had finished sending."""
    sock = transport.get_extra_info("socket")
    if sock is None or not hasattr(socket, "TCP_INFO"):
        return False
    state: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state[0] != _CLOSE_WAIT


class FlowControl(Protocol):
    write_paused: bool  # the client reads more slowly than the router writes
    clients: ClientConnections


class HttpExchange:
    """The ClientConnection of Weir's own server."""

    def __init__(
        self,
        incoming: IncomingRequest,
        handler: Handler,
        transport: asyncio.Transport,
        flow: FlowControl,
        on_response: Callable[[], None],
    ) -> None:
        self.incoming = incoming
        self.handler = handler
        self.transport = transport
        self.flow = flow
        self.on_response = on_response
        self.keep_alive = True
        self.http_1_0 = False
        self.request_complete = False
        self.response_started = False
        self.response_complete = False
        self.gone = False
        self.received: bytes | None = None
        self.takes_chunks = False
        self.task: asyncio.Task[None] | None = None
        self.on_room: Callable[[], None] | None = None
        self.extra = b""
        self._parts: list[bytes | bytearray] = []  # parts of a body that did not arrive in one piece
        self._size = 0
        self._held = 0  # bytes counted in body_bytes
        self._share = 0  # bytes counted towards the client's share
        self._client = ""  # API key or network to which these bytes count
        self._crowded_out = False  # bodies of other requests have used up the limit
        self._waiter: asyncio.Future[None] | None = None
        self._continued = False  # True if the client has been asked for the body
        self._head = b""  # head of the response, not yet written
        self._lines = b""  # lines of the response's head
        self._written = b""  # the last bytes of the response

    # The protocol's side

    async def run(self, tasks: "set[asyncio.Task[None]]") -> None:
        try:
            await self.handler(self.incoming, self)
        except Exception:
            log.exception("a request failed")
            if not self.response_started:
                lines, body = errors.answer(self.incoming.path, BROKEN, "")
                self.start(BROKEN.status, lines)
                self.end(body)
        finally:
            self.flow.clients.body_bytes -= self._held  # inlined `release`
            self._held = 0
            if self._share:
                self._leave_share()
            if self.task is not None:
                tasks.discard(self.task)
            if not self.response_complete and not self.gone:
                self.transport.close()

    def release(self) -> None:
        """Release the body."""
        self.flow.clients.body_bytes -= self._held
        self._held = 0
        if self._share:
            self._leave_share()

    def feed(self, data: bytes, *, is_last: bool = False) -> None:
        size, clients = len(data), self.flow.clients
        held = self._held + size
        self._size += size
        self.request_complete = is_last
        if self._size > MAX_BODY or self.response_complete or self._crowded_out:
            self._parts.clear()
        elif clients.body_bytes + size > clients.most_body_bytes or (
            (held > SHARED_FROM or not is_last) and not self._takes_share(held)
        ):
            self._crowded_out = True
        else:
            self._held = held
            clients.body_bytes += size
            if is_last and not self._parts:
                self.received = data
            else:
                self._keep(data, is_last=is_last)
        if self._waiter is not None and (is_last or not self._is_held):
            self._wake()

    def _takes_share(self, size: int) -> bool:
        """Count the body towards its client's share, again with each part, because the API key is unknown until the
        first part has arrived.
        """
        if self._share:
            self._leave_share()
        self._client = client_of(self.incoming)
        if not self.flow.clients.take_share(self._client, size):
            return False
        self._share = size
        return True

    def _leave_share(self) -> None:
        self.flow.clients.leave_share(self._client, self._share)
        self._share = 0

    @property
    def _is_held(self) -> bool:
        return self._size <= MAX_BODY and not self._crowded_out

    def _keep(self, data: bytes, *, is_last: bool) -> None:
        """Keep a part of the body; parts are joined only once, because copying a long prompt takes as long as hashing
        it."""
        parts = self._parts
        if len(data) >= PART:
            parts.append(data)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += data
        else:
            parts.append(bytearray(data))
        if is_last:
            self.received = b"".join(parts)
            parts.clear()

    def client_left(self) -> None:
        if self.response_complete:
            return
        self.gone = True
        if self._waiter is not None:
            self._wake()
        elif self.task is not None:
            self.task.cancel()

    def probe(self) -> None:
        """Send data that a waiting client ignores, if the response allows it."""
        if self.http_1_0 or self.gone:
            return
        if not self.response_started:
            self.transport.write(CONTINUE)
        elif self.takes_chunks and self._of_events and self._written.endswith((b"\n\n", b"\n\n\r\n")):
            self.write(COMMENT)

    @property
    def _of_events(self) -> bool:
        return b"text/event-stream" in self._lines

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The handler's side

    async def read(self) -> bytes:
        while (body := self.received) is None:
            if self.gone:
                raise ClientGone
            if self._crowded_out:
                raise too_many()
            if self._size > MAX_BODY:
                raise too_large()
            await self._more()
        self.received = None
        return body

    async def _more(self) -> None:
        if not self._continued:
            self._continued = True
            if any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.incoming.headers):
                self.transport.write(CONTINUE)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def start(self, status: int, lines: bytes) -> None:
        self.response_started = True
        if self.extra:
            lines += self.extra
        framed = lines.startswith(_LENGTH) or lines.find(_LENGTH_LATER) >= 0 or status in BODILESS  # `in` takes longer
        if not framed and not self.http_1_0:
            self.takes_chunks = True
            lines += CHUNKED
        elif not framed:
            self.keep_alive = False
        if not self.keep_alive:
            lines += b"connection: close\r\n"
        self._lines = lines
        self._head = b"%b%b\r\n" % (STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, lines)

    def write(self, data: bytes) -> bool:
        return self.write_chunk(b"%x\r\n%b\r\n" % (len(data), data) if self.takes_chunks else data)

    def write_chunk(self, chunk: bytes) -> bool:
        if self._head:
            chunk = self._head + chunk
            self._head = b""
        self._written = chunk[-4:]
        try:
            self.transport.write(chunk)
        except RuntimeError:
            if not self.transport.is_closing():
                raise
        return self.flow.write_paused

    def end(self, data: bytes = b"") -> None:
        if not self.takes_chunks:
            last = data
        elif data:
            last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
        else:
            last = b"0\r\n\r\n"
        if last or self._head:
            self.write_chunk(last)
        self.response_complete = True
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
