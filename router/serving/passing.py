"""Forwards a complete request and streams its answer back, for calls that need no decision."""

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import quote

from router.http import headers
from router.http.client import ClientConnection, IncomingRequest
from router.upstream.connection import Connection
from router.upstream.connection_pool import ConnectionPool
from router.upstream.errors import UpstreamError
from router.upstream.stalls import Stalls


class ByteChange(Protocol):
    """A change to an answer's bytes on their way."""

    def feed(self, data: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


def request_bytes(incoming: IncomingRequest, upstream: ConnectionPool, lines: bytes, sent: bytes) -> bytes:
    # In a decoded path, characters that could end the line or name another path and query.
    path = quote(incoming.path, safe="/:@!$&'()*+,;=").encode()
    target = upstream.base + path + (b"?" + incoming.query if incoming.query else b"")
    head = (incoming.method.encode(), target, upstream.authority, lines, len(sent))
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n" % head + sent


class _Unleased:
    """The client of an answer that no engine's model is generating."""

    has_content = True

    def goes_on(self) -> None:
        """Do nothing: this answer is no sign of an engine's progress."""


_UNLEASED = _Unleased()


async def pass_on(
    connection: Connection,
    client: ClientConnection,
    request_id: str,
    watch: tuple[Stalls, float],
    changes: Sequence[ByteChange] = (),
) -> None:
    """Pass the answer on until it has been silent for too long. `watch` is (who checks for silences, the longest
    silence in s)."""
    stalls, silent_s = watch

    def take(data: bytes) -> bool:
        for change in changes:
            data = change.feed(data)
        return client.write(data) if data else False

    stalls.watch(connection, (_UNLEASED, silent_s, 0.0))
    try:
        lines = headers.returned(connection.headers, without_length=bool(changes))
        client.start(connection.status, lines + headers.id_line(request_id))
        client.on_room = connection.resume
        rest = await connection.pour(take if changes else client.write)
        for change in changes:
            rest = change.feed(rest) + change.finish()
        client.end(rest)
    except UpstreamError:
        return  # the answer is incomplete: the connection closes
    finally:
        client.on_room = None
        stalls.forget(connection, None)
        connection.release()
