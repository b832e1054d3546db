"""A request's head and the connection that its response goes to, as the router's handlers see them.

Two implementations: exchange.py writes to the socket, under the server of `python -m router`; asgi.py speaks ASGI,
under any server.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from router.contract.net.addresses import network_of


class IncomingRequest(Struct):
    """A request's head."""

    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]  # names in lower case
    peer: str  # client's address
    method: str = "POST"
    key_id: str = ""  # its API key, once known


def client_of(incoming: IncomingRequest) -> str:
    """Return the client to which a request is attributed: its API key, or else its network."""
    return incoming.key_id or network_of(incoming.peer)


class ClientConnection(Protocol):
    takes_chunks: bool  # `write_chunk` may be called
    on_room: Callable[[], None] | None  # set after `write` returned True; called when the client has caught up
    extra: bytes  # header lines added to any answer
    gone: bool  # the client left; the request's task is then cancelled
    received: bytes | None  # whole body, if it has arrived, may be kept and has not been read

    async def read(self) -> bytes:
        """Return the whole body. Raise ErrorResponse if it is too large, ClientGone if the client leaves."""

    def start(self, status: int, lines: bytes) -> None:
        """Send the head with these header lines, perhaps together with the body's first bytes."""

    def write(self, data: bytes) -> bool:
        """Write the data. Return True if the client reads too slowly; the caller then waits for `on_room` before it
        writes more.
        """

    def write_chunk(self, chunk: bytes) -> bool:
        """Frame the part as a chunk, then write it like `write`."""

    def end(self, data: bytes = b"") -> None:
        """Send the last bytes of the response."""
