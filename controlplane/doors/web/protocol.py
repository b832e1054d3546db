"""A client's connection: uvicorn's, with limits on heads, times and the number of connections."""

import asyncio
import sys
from typing import cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from controlplane.doors.web.room import SpareConnection, make_room
from router.contract.net.retry_after import retry_after

HEAD_S = 20.0  # limit from the connection, or a further request's first byte, to the end of the head
BODY_S = 60.0  # limit from the head to the end of the body, extended for a large body
BODY_BYTES_PER_S = 32_768  # a body that arrives at this rate is always in time
STALL_S = 60.0  # time after which a client that does not read its answer is disconnected
MAX_HEAD = 64 * 1024  # bytes of target and headers
MAX_TRAILERS = 8 * 1024  # bytes after a chunked body, which are dropped

_REFUSALS = {
    400: (b"Bad Request", b"this is not HTTP/1.1"),
    408: (b"Request Timeout", b"the request was not complete in time"),
    431: (b"Request Header Fields Too Large", b"target and headers may have at most %d bytes" % MAX_HEAD),
    503: (b"Service Unavailable", b"the server has no free connection; try again"),
}


class HeadTooLarge(Exception):
    pass


class BoundedProtocol(HttpToolsProtocol, SpareConnection):
    """Adds the limits. It only extends methods of asyncio.Protocol and of httptools' parser."""

    _admitted = False
    _awaits_head = True
    _bytes = 0  # bytes read of the current head or body
    _trailers = 0
    _began = 0.0  # loop time at the start of the current head or body
    _timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        if not make_room(self.connections, address, self.config.forwarded_allow_ips or ()):
            self.transport = cast(asyncio.Transport, transport)
            self._refuse(503)
            return
        self._admitted = True
        super().connection_made(cast(asyncio.Transport, transport))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_stall()
        if self._admitted:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._admitted or self.transport.is_closing():
            return
        if self._awaits_head and self._timer is None:
            self._await_head()  # first bytes of a further request
        self._bytes += len(data) if self._awaits_head else 0
        super().data_received(data)
        if self._awaits_head and self._bytes > MAX_HEAD and not self.transport.is_closing():
            self._refuse(431)

    def pause_writing(self) -> None:
        if self._admitted:
            self._stalled = self._stalled or self.loop.call_later(STALL_S, self.transport.abort)
            super().pause_writing()

    def resume_writing(self) -> None:
        self._stop_stall()
        if self._admitted:
            super().resume_writing()

    def _stop_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # httptools.HttpRequestParser

    def on_message_begin(self) -> None:
        self._trailers = 0
        self._awaits_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._awaits_head:
            super().on_header(name, value)
            return
        # A trailer after a chunked body must not become a header of the request.
        self._trailers += len(name) + len(value) + 4
        if self._trailers > MAX_TRAILERS:
            raise HeadTooLarge

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD:
            raise HeadTooLarge
        self._awaits_head = False
        self._bytes = 0
        self._start_timer(BODY_S)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._awaits_head = self.served = True
        self._bytes = 0
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._stop_timer()  # uvicorn's WebSocket protocol has separate time limits
        super().handle_websocket_upgrade()

    # Time limits

    def _await_head(self) -> None:
        self._awaits_head = True
        self._bytes = 0
        self._start_timer(HEAD_S)

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._began = self.loop.time()
        self._timer = self.loop.call_later(seconds, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        due = self._began + BODY_S + self._bytes / BODY_BYTES_PER_S
        if not self._awaits_head and self.loop.time() < due:
            self._timer = self.loop.call_at(due, self._expire)
        elif not self.transport.is_closing():
            self._refuse(408)

    # Making room for others

    @property
    def spare_since(self) -> float | None:
        busy = self.pipeline or (self.cycle is not None and not self.cycle.response_complete)
        return None if busy or not self._awaits_head else self._began

    def make_way(self) -> None:
        self.connections.discard(self)
        self._refuse(503)

    # Unreadable input

    def send_400_response(self, msg: str) -> None:
        """Answer 400; uvicorn calls it while the parser's error is being handled."""
        error = _parser_error()
        self._refuse(431 if isinstance(error, HeadTooLarge) else 400)

    def _refuse(self, status: int) -> None:
        """Answer and close; close without an answer if it could become part of the answer to another request."""
        self._stop_timer()
        if not self.pipeline and (self.cycle is None or _has_no_answer(self.cycle)):
            self.transport.write(refusal(status))
        self.transport.close()


def refusal(status: int) -> bytes:
    """Return the whole answer."""
    reason, text = _REFUSALS[status]
    after = retry_after(status)
    later = b"" if after is None else b"retry-after: %d\r\n" % after
    head = b"HTTP/1.1 %d %b\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n"
    return head % (status, reason, len(text), later) + text


def _has_no_answer(cycle: RequestResponseCycle) -> bool:
    """Return whether the next bytes sent answer the request that is being received."""
    return cycle.response_complete or (cycle.more_body and not cycle.response_started)


def _parser_error() -> BaseException | None:
    """Return an error that one of our methods raised inside the parser."""
    error = sys.exc_info()[1]
    return error.__context__ if isinstance(error, httptools.HttpParserError) else None
