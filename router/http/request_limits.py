"""A client's connection: uvicorn's, with bounds on the time and the size that a client may take for a request.

uvicorn waits for ever for the rest of a head or of a body, takes heads of any size, writes its 400 into the middle of
another answer when requests are pipelined, and does not tell a pipelined request that its client is gone.
"""

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from router.http import errors
from router.http.errors import ErrorResponse
from router.http.protocol import RouterProtocol

HEAD_S = 20.0  # from the connection, or from a further request's first byte, to the end of the head
BODY_S = 60.0  # from a request's first incomplete read to the end of its body; also what of it nobody reads any more
LINGER_S = 1.0  # between an answer to what cannot be read and the end of the connection
MAX_HEAD = 64 * 1024  # bytes of target and headers

_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
_OFFER = (b"connection", b"upgrade", b"http2-settings")
_IDLE, _HEAD, _BODY = range(3)


class HeadTooLarge(Exception):
    pass


class RequestLimits(RouterProtocol):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._state = _HEAD
        self._bounded = _IDLE  # the state that the timer is for
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # of the head, in the reads that came before the present one
        self._read_bytes = 0
        self._running: RequestResponseCycle | None = None
        self._offers = False  # the request offers a protocol besides HTTP/1.1, which it need not be granted
        self._deaf = False  # what comes is not HTTP, or too much: nothing more is read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._bound()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._read_bytes = len(data)
        while data and not self._deaf:
            data = self._feed(data)
        if (self._state or self._bounded) and not self._deaf:
            self._incomplete()

    def _feed(self, data: bytes) -> bytes:
        """What is left to be read, when the parser stopped at a request that offers another protocol."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            return self._without_offer() + rest if self._offers else rest
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, HeadTooLarge):
                self._refuse_head()
            else:
                self._refuse(ErrorResponse(400, "invalid_http", f"this is not HTTP/1.1: {error}"))
        return b""

    def _without_offer(self) -> bytes:
        """The head again, as of a client that offers nothing: the parser takes no body of a request that does."""
        self._offers = False
        self._read_bytes = 0
        kept = [b"%b: %b\r\n" % header for header in self.headers if header[0] not in _OFFER]
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (self.parser.get_method(), self.url, b"".join(kept))

    def _incomplete(self) -> None:
        """A request's end has not come with this read, or has come after several."""
        if self._state == _HEAD:
            self._head_bytes += self._read_bytes
            if self._head_bytes > MAX_HEAD:
                self._refuse_head()
                return
        if self._bounded != self._state:
            self._bound()

    def _bound(self) -> None:
        """Let what is awaited now come within its time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._bounded = self._state
        if self._bounded:
            limit_s = HEAD_S if self._bounded == _HEAD else BODY_S
            self._timer = self.loop.call_later(limit_s, self._late, limit_s)

    def _late(self, limit_s: float) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._state == _HEAD:
            self._refuse(ErrorResponse(408, "head_timeout", f"the request's head was not here within {limit_s:g} s"))
        elif self.cycle is not self._running:
            self._bound()  # it is not its turn, and nothing is read until then
        elif self.cycle.response_complete:
            self.transport.close()  # the answer did not need it
        else:
            self._refuse(ErrorResponse(408, "body_timeout", f"the request's body was not here within {limit_s:g} s"))

    def _refuse_head(self) -> None:
        self._refuse(ErrorResponse(431, "headers_too_large", f"target and headers may have at most {MAX_HEAD} bytes"))

    def _refuse(self, refusal: ErrorResponse) -> None:
        """Say it and close; while whole requests that came before are being answered, close after the last of them."""
        self._deaf = True
        if self._timer is not None:
            self._timer.cancel()
        last = self.cycle
        if last is None or last.response_complete:
            self._say(refusal)
        elif not last.more_body:
            last.keep_alive = False
        elif last is self._running:
            self._gone(last)
            self._say(refusal)
        elif self._running is not None:
            self._running.keep_alive = False

    def _say(self, refusal: ErrorResponse) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = errors.body("", refusal, "")
            head = (
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head % (refusal.status, _REASONS[refusal.status], len(body)) + body)
        # Closed at once, with bytes unread, the connection would be reset, and the client might not see the answer.
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)

    # The parser's

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._state = _HEAD
        self._head_bytes = -self._read_bytes  # what stands before it in the same read may be another request's

    def on_headers_complete(self) -> None:
        if self._read_bytes > MAX_HEAD or self._head_bytes >= 0:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > MAX_HEAD:
                raise HeadTooLarge
        if self.parser.should_upgrade() and self._get_upgrade() not in (None, b"websocket"):
            self._offers = True  # curl --http2 and Java's client do with each request
            return
        self._state = _BODY
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._offers:
            return
        self._state = _IDLE
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """A client may ask for what it likes as often as it likes."""

    # Whose client is gone

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        self._gone(self._running)  # with pipelined requests it is not the last one, which uvicorn tells

    @staticmethod
    def _gone(cycle: RequestResponseCycle | None) -> None:
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
