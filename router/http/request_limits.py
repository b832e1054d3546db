"""Limits on the time and size of a request's head and body."""

from typing import Final, Generic, TypeVar

from router.http.errors import ErrorResponse
from router.timers import Deadlines

HEAD_S = 20.0  # from the start of the connection, or the first byte of a later request, to the end of the head
BODY_S = 60.0  # from the first incomplete read to the end of the body, even after an early response
SLOW_S = 1.0  # time allowed for a body before its connection may be closed to make room
KEEP_ALIVE_S = 75.0  # between two requests; longer than in load balancers in front, so that they close first
MAX_HEAD = 64 * 1024  # bytes of target and headers
MAX_TRAILERS = 8 * 1024  # bytes of trailers, which are ignored
MAX_FRAMING = 64 * 1024  # bytes of chunk heads and trailers without body bytes in between

# What the client is expected to send next
NOTHING: Final = 0
HEAD: Final = 1
BODY: Final = 2

Connection = TypeVar("Connection")


class Trailers:
    """Collects trailers in place of headers, so that they are neither obeyed nor forwarded."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0

    def append(self, trailer: tuple[bytes, bytes]) -> None:
        name, value = trailer
        self.size += len(name) + len(value) + 4
        if self.size > MAX_TRAILERS:
            raise ErrorResponse(431, "trailers_too_large", f"trailers may have at most {MAX_TRAILERS} bytes")


class RequestLimits(Generic[Connection]):
    """The limits of one connection. Once a time limit passes, `deadlines` expires the connection."""

    __slots__ = (
        *("_connection", "_deadlines", "_framing_bytes", "awaited"),
        *("body_came", "head_bytes", "read_bytes", "timed", "trailers"),
    )

    def __init__(self, connection: Connection, deadlines: Deadlines[Connection]) -> None:
        self._connection = connection
        self._deadlines = deadlines
        self.awaited = HEAD
        self.timed = NOTHING  # part whose deadline is running; NOTHING: none, or keep-alive
        self.head_bytes = 0  # head bytes before the current read; negative: the head began in this read
        self.read_bytes = 0  # bytes of the current read
        self._framing_bytes = 0  # since the last byte of the body, before the current read
        self.trailers = Trailers()
        self.body_came = False  # body bytes arrived in the current read

    def begin_head(self) -> None:
        if self.timed == NOTHING:
            self._deadlines.drop(self._connection, None)
        self.awaited = HEAD
        self.trailers.size = 0
        self.head_bytes = -self.read_bytes  # the read may begin with the end of the previous request

    def check_head(self, target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """Check the head's size; needed only if the current read alone does not exceed the limit."""
        size = len(target) + sum(len(name) + len(value) + 4 for name, value in headers)
        if size > MAX_HEAD:
            raise _head_too_large()

    def end_read(self) -> None:
        """End the current read and set the deadline for what the client is expected to send next."""
        if self.awaited == HEAD:
            self.head_bytes += self.read_bytes
            if self.head_bytes > MAX_HEAD:
                raise _head_too_large()
        elif self.awaited == BODY:
            self._check_framing()
        if self.timed != self.awaited:
            self.restart()

    def _check_framing(self) -> None:
        """Limit framing: the parser keeps unfinished trailers of any length and silently skips chunk extensions."""
        if self.body_came or self.timed != BODY:
            self._framing_bytes = 0
            return
        self._framing_bytes += self.read_bytes
        if self._framing_bytes > MAX_FRAMING:
            message = f"chunk heads and trailers may have at most {MAX_FRAMING} bytes without a byte of the body"
            raise ErrorResponse(431, "trailers_too_large", message)

    def restart(self) -> None:
        """Restart the deadline for what the client is expected to send next."""
        self.timed = self.awaited
        if self.awaited == NOTHING:
            self._deadlines.stop(self._connection)
        else:
            self._deadlines.start(self._connection, HEAD_S if self.awaited == HEAD else BODY_S)

    def linger(self, seconds: float) -> None:
        self._deadlines.start(self._connection, seconds)

    def stop(self) -> None:
        self._deadlines.stop(self._connection)


def _head_too_large() -> ErrorResponse:
    return ErrorResponse(431, "headers_too_large", f"target and headers may have at most {MAX_HEAD} bytes")


def too_late(awaited: int) -> ErrorResponse:
    if awaited == HEAD:
        return ErrorResponse(408, "head_timeout", f"the request's head was not here within {HEAD_S:g} s")
    return ErrorResponse(408, "body_timeout", f"the request's body was not here within {BODY_S:g} s")
