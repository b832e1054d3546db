"""A connection to an engine: HTTP/1.1 on an asyncio.Protocol, one exchange at a time. The hot path."""

import asyncio
import ssl
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from router.contract.net.http_client import MAX_HEAD, HttpClientProtocol
from router.contract.net.tls_refusal import explained
from router.timers import Deadlines
from router.upstream import host_liveness
from router.upstream.answer.keep_alive import content
from router.upstream.errors import (
    AnswerStalled,
    ConnectionBroken,
    FirstByteTimeout,
    HostSilent,
    ProtocolError,
    UpstreamError,
)

HIGH_WATER = 256 * 1024  # bytes of a response kept for a slow client

Sink = Callable[[bytes], bool]  # returns True to stop reading from the engine until `resume`
# Receives a framed chunk; returns None to pass it to the other sink, unframed
EventSink = Callable[[bytes], bool | None]


@lru_cache(maxsize=4_096)
def _beginnings(size: int) -> tuple[bytes, ...]:
    """Return the possible beginnings of a read of `size` bytes that is exactly one chunk with an event: the chunk's
    size in lower or upper case, then the first letter of `data` or `event`. A comment begins with another character.
    """
    for digits in range(1, 9):
        length = b"%x" % max(0, size - digits - 4)
        if len(length) == digits:
            sizes = dict.fromkeys((length, length.upper()))
            return tuple(b"%b\r\n%b" % (length, letter) for length in sizes for letter in (b"d", b"e"))
    return ()


class ConnectionOwner(Protocol):
    """Keeps connections between exchanges (router/upstream/connection_pool.py)."""

    connections: "set[Connection]"
    deadlines: "Deadlines[Connection]"

    def give_back(self, connection: "Connection") -> None: ...
    def forget(self, connection: "Connection") -> None: ...


class Connection(HttpClientProtocol):
    """A connection to an engine: `start`, `begun` or `first_bytes`, `read` or `pour`, `release`."""

    def __init__(self, home: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._home = home
        self._chunks: list[bytes] = []  # never replaced, because the parser keeps a reference
        self._outside_chunk = [True, False]  # only the first element counts; reversed at each end of a chunk
        # The parser calls these C functions directly, so that an event of a stream needs no Python call.
        self.on_body = self._chunks.append
        self.on_chunk_header = self.on_chunk_complete = self._outside_chunk.reverse
        self._sink: Sink | None = None
        self._event_sink: EventSink | None = None
        self._limit_s = 0.0
        self._paused = False
        self.idle_since = 0.0
        self.secure: ssl.SSLContext | None = None  # None: without TLS
        self._expect_body()
        super().__init__(loop)

    def _expect_body(self) -> None:
        self._chunks.clear()
        self._bare_bytes = 0  # bytes since the last byte of the body
        self._at_chunk = False  # True if the next byte is the first of a chunk
        self._heard: bool | None = None  # whether content has arrived since the last check; None: time does not count
        self._quiet_s = 0.0
        self._is_stream = False  # set at the first check
        self._line = b""  # unfinished line of a stream without content since the last check

    def lost(self, exc: Exception | None) -> UpstreamError:
        if isinstance(exc, OSError) and exc.errno in host_liveness.UNREACHABLE:
            return HostSilent("its host does not answer")
        if isinstance(exc, ssl.SSLError):
            return ConnectionBroken(f"the connection broke: {explained(exc)}")
        return ConnectionBroken(f"the engine closed the connection before the answer was whole{self.hint}")

    def invalid(self, why: str) -> UpstreamError:
        return ProtocolError(f"not a valid HTTP answer: {why}")

    # One exchange

    def start(self, request: bytes, timeout_s: float, body: bytes = b"") -> None:
        self._expect_body()
        self._limit_s = timeout_s
        self._home.deadlines.start(self, timeout_s)
        self.send(request, body)

    def begun(self) -> asyncio.Future[None] | None:
        """Return None once the head and the body's first bytes, or a complete empty response, have arrived;
        otherwise return what to wait for before asking again."""
        if self._chunks or self._complete:
            return None
        if self._error is not None:
            raise self._error
        waiter = self._waiter = self._loop.create_future()
        return waiter

    async def first_bytes(self) -> None:
        try:
            while (more := self.begun()) is not None:
                await more
        finally:
            self._home.deadlines.drop(self, None)

    def read_now(self) -> bytes:
        """Return the bytes since the last call, possibly none."""
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._bare_bytes = 0
        if self._paused:
            self.resume()
        return data

    async def read(self) -> bytes:
        """Return the bytes since the last call, at least one; empty once the response is complete."""
        while (more := self.begun()) is not None:
            await more
        return self.read_now()

    def peek(self) -> bytes:
        """Return the unread bytes without consuming them."""
        return b"".join(self._chunks)

    async def peek_whole(self, largest: int) -> bytes:
        """Like `peek`, once the response is complete or exceeds `largest` bytes."""
        while not self._complete and sum(map(len, self._chunks)) <= largest:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self.peek()

    async def pour(self, sink: Sink, event_sink: EventSink | None = None) -> bytes:
        """Pass bytes to `sink` as they arrive, without a task; return the last bytes of the response.
        A read that is exactly one chunk and ends an event, as most reads do, goes to `event_sink` before it is parsed.
        """
        if event_sink and [value for name, value in self.headers if name == b"transfer-encoding"] != [b"chunked"]:
            event_sink = None
        while not self._complete:
            if self._chunks and sink(self._taken()):
                self._hold()
            elif self._paused:
                self.resume()
            if self._error is not None:
                raise self._error
            self._sink, self._event_sink = sink, event_sink
            try:
                await self._wait()
            finally:
                self._sink = self._event_sink = None
        return self._taken()

    def _taken(self) -> bytes:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._bare_bytes = 0
        return data

    def check_quiet(self, passed_s: float, limit_s: float, *, is_early: bool = False) -> bool:
        """Fail when no content has arrived for `limit_s`; `passed_s` is the time since the last check. Return True if
        content has arrived since then, or may have. Keep-alives do not count, because an engine that hangs sends them
        as well. With `is_early`, no other byte counts either, because the first content has not arrived. Time is added
        up check by check, so chunks read no clock, and bytes that wait in the socket while this process is busy do not
        count as silence. Nor does the time for which reading is paused for a slow client.
        """
        heard, self._heard = self._heard, False
        if heard is None:
            kinds = [value.lower() for name, value in self.headers if name == b"content-type"]
            self._is_stream = bool(kinds) and kinds[0].startswith(b"text/event-stream")
        elif heard:
            self._line = b""
        if is_early and not self._paused:
            self._quiet_s += passed_s
            if self._quiet_s >= limit_s:
                self._give_up(FirstByteTimeout(f"no content within {limit_s:g} s of the first byte"))
            return False
        came = self._paused or heard is True
        if came or heard is None:
            self._quiet_s = 0.0
            return came
        self._quiet_s += passed_s
        if self._quiet_s >= limit_s:
            self._give_up(AnswerStalled(f"no part of the answer arrived for {limit_s:g} s"))
        return False

    def check_host(self) -> bool:
        """Return False, and fail the request, if the host is unreachable."""
        if not self.busy or self._transport is None or not host_liveness.is_gone(self._transport):
            return True
        self._give_up(HostSilent("its host does not answer"))
        return False

    @property
    def done(self) -> bool:
        """Return whether the response is complete and has been read."""
        return self._complete and not self._chunks

    def release(self) -> None:
        """Return the connection to the pool after a complete answer; otherwise close it, which makes the engine stop
        computing."""
        if self.busy and self.finish():
            if self._paused:
                self.resume()
            self.idle_since = self._loop.time()
            self._home.give_back(self)

    def abort(self) -> None:
        self._home.deadlines.stop(self)
        super().abort()

    def _give_up(self, error: UpstreamError) -> None:
        self._fail(error)
        self.abort()

    def expire(self) -> None:
        """Fail, because the first byte did not arrive in time."""
        self._give_up(FirstByteTimeout(f"no answer within {self._limit_s:g} s"))

    def _hold(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        host_liveness.ask_when_idle(transport)
        self._home.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._home.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.busy or self._complete:
            self._drop_unasked()
            return
        self._silent = False
        if (  # exactly one chunk that ends an event: the parser is between chunks and may skip it
            self._event_sink is not None
            and self._at_chunk
            and data.startswith(_beginnings(len(data)))
            and data.endswith(b"\n\n\r\n")
            and (full := self._event_sink(data)) is not None
        ):
            if full:
                self._hold()
            if self._heard is False:
                self._listen(data[data.find(b"\n") + 1 : -2])
            return
        self._parse(data)
        chunks = self._chunks
        if self._sink is None or self._complete:
            self._came()
        elif chunks and self._sink(self._taken()):
            self._hold()

    def _parse(self, data: bytes) -> None:
        chunks = self._chunks
        before = len(chunks)
        self._feed(data)
        self._at_chunk = self._outside_chunk[0] and data.endswith(b"\n")
        if len(chunks) > before:
            if self._heard is False:
                self._listen(b"".join(chunks[before:]))
        elif not self._complete:
            self._count_bare(len(data))

    def _listen(self, data: bytes) -> None:
        """Check a part of the body for content, because none has arrived since the last check."""
        self._heard, self._line = content(self._line + data, is_stream=self._is_stream)

    def _count_bare(self, size: int) -> None:
        """Limit the bytes of an unfinished header or trailer, which the parser keeps."""
        self._bare_bytes += size
        if self._bare_bytes > MAX_HEAD:
            self._reject(f"its head is larger than {MAX_HEAD} bytes" if not self.status else "no body, only framing")

    def _came(self) -> None:
        """Keep bytes that no sink takes."""
        if self.status and (self._chunks or self._complete):
            if not self._complete and sum(map(len, self._chunks)) > HIGH_WATER:
                self._hold()
            waiter = self._waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
