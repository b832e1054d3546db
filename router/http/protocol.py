"""A client's connection: HTTP/1.1 on an asyncio.Protocol that feeds httptools. Each request becomes an HttpExchange,
which writes its response to the socket; pipelined requests are answered one after another."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import httptools

from router.http import errors, request_limits
from router.http.client import IncomingRequest
from router.http.clients import unread_bytes
from router.http.errors import ErrorResponse
from router.http.exchange import ANSWER_S, PROBES_S, HttpExchange, is_gone
from router.http.request_limits import BODY, NOTHING, RequestLimits, too_late

if TYPE_CHECKING:
    from router.http.server import HttpServer

PIPELINED = 8  # requests that may wait on a connection while another is answered
PROGRESS = 1024  # a client must read this many waiting bytes within ClientConnections.stall_s
LINGER_S = 1.0  # time between the response to unreadable input and the end of the connection

_REASONS = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}
_OFFER = (b"connection", b"upgrade", b"http2-settings")


class HttpProtocol(asyncio.Protocol):
    __deletable__ = ("_limits", "_parser", "on_message_begin")  # for mypyc

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self.clients = server.clients
        self._limits = RequestLimits(self, server.deadlines)
        self._url: list[bytes] = []  # parts of the target received so far
        self._body: list[bytes] = []  # parts of the body in the current read
        # The parser calls these C functions directly, so a target and a body need no call into Python.
        self.on_url, self.on_body = self._url.append, self._body.append
        self.on_message_begin = self._limits.begin_head
        self._parser = self._new_parser()
        self._transport: asyncio.Transport
        self._peer = ""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._take_header: Callable[[tuple[bytes, bytes]], None] = self._headers.append
        self._offers = False  # the request offers a protocol upgrade, which may be ignored
        self._deaf = False  # after invalid or excessive input nothing more is read
        self._read_paused = False
        self._half_closed = False  # the client has finished sending
        self._probed = False
        self.write_paused = False
        self._unread = 0  # unread bytes at the last check
        self._running: HttpExchange | None = None
        self._waiting: deque[HttpExchange] = deque()
        self._last: HttpExchange | None = None  # exchange of the last or current request

    def _new_parser(self) -> httptools.HttpRequestParser:
        made = httptools.HttpRequestParser(self)
        made.set_dangerous_leniencies(lenient_data_after_close=True)  # allows data after a last request
        return made

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's transport is not a subclass of asyncio.Transport
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        if not self._server.make_room():
            self._turn_away()
            return
        self._server.connections.add(self)
        self._server.newcomers[self] = self._server.loop.time()
        self._limits.restart()

    def _turn_away(self) -> None:
        self._deaf = True
        most = self._server.clients.limit
        message = f"this router has {most:,} connections already, as many as it may: retry in 1 s"
        self._write(ErrorResponse(503, "too_many_connections", message, retry_after_s=1))
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.leave(self)
        self._server.stalls.stop(self)
        self._limits.stop()
        while self._waiting:
            self._waiting.pop().release()
        if self._running is not None:
            self._abandon(self._running)
        # Break the reference cycle, which would otherwise last until the garbage collector runs.
        self._running = self._last = None
        del self._parser, self._limits, self.on_message_begin

    def data_received(self, data: bytes) -> None:
        limits = self._limits
        limits.read_bytes, limits.body_came = len(data), False
        while data and not self._deaf:
            try:
                self._parser.feed_data(data)
                data = b""
            except (httptools.HttpParserUpgrade, httptools.HttpParserError) as stop:
                data = self._rest(data, stop)
        if limits.awaited != NOTHING or limits.timed != NOTHING:
            self._end_read(limits)

    def _end_read(self, limits: RequestLimits["HttpProtocol"]) -> None:
        """Handle the end of a read: a request is still incomplete, or has just been completed."""
        if self._body and self._last is not None:
            limits.body_came = True
            self._last.feed(b"".join(self._body))
        self._body.clear()
        if not self._deaf:
            try:
                limits.end_read()
            except ErrorResponse as refusal:
                self._refuse(refusal)

    def eof_received(self) -> bool:
        """Handle the end of the client's data; True if a request is still to be answered."""
        self._deaf = True
        last = self._last
        if last is None or last.response_complete:
            return False
        if not last.request_complete and not self._waiting:
            return False  # the request is incomplete
        if not last.request_complete:
            self._waiting.pop().release()
            last = self._waiting[-1] if self._waiting else self._running
        assert last is not None  # noqa: S101 - a waiting exchange is in the queue
        last.keep_alive = False
        self._half_closed = True
        self._probe()
        return True

    def _probe(self) -> None:
        """Probe whether the client is still there; see exchange.is_gone."""
        if self._running is not None:
            self._running.probe()
        self._probed = True
        self._limits.linger(ANSWER_S)

    def pause_writing(self) -> None:
        self.write_paused = True
        self._watch_reading()
        self._server.unread.hold(self)

    def resume_writing(self) -> None:
        self.write_paused = False
        self._server.stalls.stop(self)
        self._server.unread.forget(self)
        if self._running is not None and self._running.on_room is not None:
            self._running.on_room()

    def _rest(self, data: bytes, stop: Exception) -> bytes:
        """Return the bytes left unread by the parser, which stops at a request that offers another protocol."""
        if isinstance(stop, httptools.HttpParserUpgrade):
            rest = data[stop.args[0] :]
            return self._without_offer() + rest if self._offers else rest
        found = stop.__context__
        if not isinstance(found, ErrorResponse):
            found = ErrorResponse(400, "invalid_http", f"this is not HTTP/1.1: {stop}")
        self._refuse(found)
        return b""

    def _without_offer(self) -> bytes:
        """Return the head without the offered upgrade: the parser skips the body of a request that offers one."""
        self._offers = False
        self._limits.read_bytes, self._limits.body_came = 0, False
        kept = [b"%b: %b\r\n" % header for header in self._headers if header[0] not in _OFFER]
        if any(name == b"connection" and b"close" in value.lower() for name, value in self._headers):
            kept.append(b"connection: close\r\n")
        self._expect_head()
        method = self._parser.get_method()
        self._parser = self._new_parser()  # the old parser reads nothing after a final request that offers an upgrade
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, self._target, b"".join(kept))

    # Clients that do not read

    def close(self) -> None:
        """Close once the client has read everything."""
        self._transport.close()
        self._watch_reading()

    def _watch_reading(self) -> None:
        self._unread = unread_bytes(self._transport)
        if self._transport.get_write_buffer_size():
            self._server.stalls.start(self, self._server.clients.stall_s)

    def check_stall(self) -> None:
        if self._unread - unread_bytes(self._transport) >= PROGRESS:
            self._watch_reading()
            return
        self._server.clients.stalled += 1
        self._transport.abort()

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of answers that wait in this process."""
        return self._transport.get_write_buffer_size()

    def give_up(self) -> None:
        """Disconnect the client to free the memory of its unread answers."""
        self._transport.abort()

    # httptools.HttpRequestParser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._take_header((name.lower(), value))

    def on_headers_complete(self) -> None:
        limits, parser, url = self._limits, self._parser, self._url
        self._target = url[0] if len(url) == 1 else b"".join(url)
        url.clear()
        if limits.read_bytes > request_limits.MAX_HEAD or limits.head_bytes >= 0:
            limits.check_head(self._target, self._headers)
        if parser.should_upgrade() and dict(self._headers).get(b"upgrade", b"websocket").lower() != b"websocket":
            self._offers = True  # curl --http2 and Java's client offer an upgrade in each request
            return
        limits.awaited = BODY
        self._take_header = limits.trailers.append
        path, query = split(self._target)
        incoming = IncomingRequest(path, query, self._headers, self._peer, parser.get_method().decode())
        exchange = HttpExchange(incoming, self._server.handle, self._transport, self, self._answered)
        keeps = parser.should_keep_alive()
        asks = not keeps
        for name, _ in self._headers:
            asks = asks or name == b"connection" or name == b"proxy-connection"
        if asks:  # HTTP/1.1 otherwise; checking takes longer
            exchange.http_1_0 = parser.get_http_version() == "1.0"
        exchange.keep_alive = keeps and not exchange.http_1_0 and not self._server.closing
        before, self._last = self._last, exchange
        if before is None:
            self._server.newcomers.pop(self, None)
        if before is None or before.response_complete:
            self._start(exchange)
        else:
            self._waiting.append(exchange)
            # Checked only here, because a connection that is not read never reports its end
            if len(self._waiting) > PIPELINED:
                self._read_paused = True
                self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._offers or self._last is None:
            return
        self._limits.awaited = NOTHING
        body = self._body
        self._last.feed(body[0] if len(body) == 1 else b"".join(body), is_last=True)
        body.clear()
        self._headers = []  # inlined `_expect_head`
        self._take_header = self._headers.append

    def _expect_head(self) -> None:
        self._headers = []
        self._take_header = self._headers.append

    # Exchanges

    def _start(self, exchange: HttpExchange) -> None:
        self._running = exchange
        tasks = self._server.tasks
        # An explicit name: generating Task-1, Task-2 and so on takes longer
        task = exchange.task = asyncio.Task(exchange.run(tasks), loop=self._server.loop, name="request")
        tasks.add(task)

    def _abandon(self, exchange: HttpExchange) -> None:
        exchange.client_left()
        if exchange.task is not None:  # a task cancelled before its first step does not end the exchange
            exchange.task.add_done_callback(self._server.tasks.discard)
            exchange.task.add_done_callback(lambda _: exchange.release())

    def _answered(self) -> None:
        if self._transport.is_closing():
            self._watch_reading()
            return
        if self._read_paused:
            self._read_paused = False
            self._transport.resume_reading()
        if self._waiting:
            self._start(self._waiting.popleft())
        elif self._limits.awaited == NOTHING:
            self._server.deadlines.start(self, request_limits.KEEP_ALIVE_S)

    def finish(self) -> None:
        """Close when all received requests are answered."""
        if self.is_idle:
            self.close()
        elif self._last is not None:
            self._last.keep_alive = False

    @property
    def is_idle(self) -> bool:
        """True between requests, even if part of the next head has arrived."""
        return self._last is None or self._last.response_complete

    @property
    def is_slow(self) -> bool:
        """True if the body of the only request has been awaited for long enough."""
        if self._limits.timed != BODY or self._last is not self._running or self._deaf:
            return False
        deadlines = self._server.deadlines
        return deadlines.due(self) - self._server.loop.time() < request_limits.BODY_S - request_limits.SLOW_S

    def make_way(self) -> None:
        """Close an idle or slow connection to make room for another."""
        if self.is_idle:
            self.close()
        else:
            message = "all connections are in use, and the body of this request was not here: retry in 1 s"
            self._refuse(ErrorResponse(503, "too_many_connections", message, retry_after_s=1))

    def expire(self) -> None:
        """Handle a client that has exceeded a time limit."""
        awaited = self._limits.awaited
        if self._transport.is_closing():
            return
        if self._half_closed:
            self._check_half_closed()
        elif self._deaf or awaited == NOTHING:
            self.close()
        elif self._read_paused or (awaited == BODY and self._last is not self._running):
            self._limits.restart()  # the next request is read only in its turn
        elif awaited == BODY and self._last is not None and self._last.response_complete:
            self.close()  # the response was sent without reading the body
        else:
            self._refuse(too_late(awaited))

    def _check_half_closed(self) -> None:
        if is_gone(self._transport):
            self._transport.abort()
        elif self._probed:
            self._probed = False
            self._limits.linger(PROBES_S)
        else:
            self._probe()

    # Unreadable input

    def _refuse(self, refusal: ErrorResponse) -> None:
        """Respond and close, but only after all earlier complete requests have been answered."""
        self._deaf = True
        self._limits.stop()
        last = self._last
        if last is None or last.response_complete:
            self._respond(refusal)
        elif last.request_complete:
            last.keep_alive = False
        elif self._waiting:  # the last one is the unreadable request
            self._waiting.pop().release()
            before = self._waiting[-1] if self._waiting else self._running
            assert before is not None  # noqa: S101 - a waiting exchange is in the queue
            before.keep_alive = False
        else:
            self._abandon(last)
            self._respond(None if last.response_started else refusal)

    def _respond(self, refusal: ErrorResponse | None) -> None:
        if refusal is not None:
            self._write(refusal)
        # Closing with unread bytes would reset the connection, and the client might not see the response.
        self._transport.write_eof()
        self._limits.linger(LINGER_S)

    def _write(self, refusal: ErrorResponse) -> None:
        lines, body = errors.answer("", refusal, "")
        first = b"HTTP/1.1 %d %b\r\n" % (refusal.status, _REASONS[refusal.status])
        self._transport.write(b"%b%bconnection: close\r\n\r\n%b" % (first, lines, body))


@lru_cache(maxsize=256)
def split(target: bytes) -> tuple[str, bytes]:
    url: Any = httptools.parse_url(target)  # its type annotations do not allow a missing query string
    query: bytes | None = url.query
    return unquote(url.path.decode("ascii")), query or b""
