"""Whom a request comes from and its answer goes to, as the proxy sees it; how the bytes travel is the server's matter.

Two implementations: exchange.py writes to the socket itself, under the server that `python -m router` runs; asgi.py
speaks ASGI, under any server.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class IncomingRequest:
    """A request's head."""

    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]  # names in lower case
    peer: str  # the address that it came from


class ClientConnection(Protocol):
    takes_chunks: bool  # `write_chunk` may be called
    on_room: Callable[[], None] | None  # called when it has caught up after a `write` that was too much

    @property
    def gone(self) -> bool:
        """It went away: its task is cancelled then."""

    async def read(self) -> bytes:
        """The request's, whole. Refusal when it is too large, ClientGone when it does not come."""

    def start(self, status: int, lines: bytes) -> None:
        """The answer's head, `lines` are its headers. It may wait for the first byte of the body."""

    def write(self, data: bytes) -> bool:
        """True when it reads more slowly than it is written to: nothing more until `on_room`."""

    def write_chunk(self, chunk: bytes) -> bool:
        """As `write`, of a chunk with its framing."""

    def end(self, data: bytes = b"") -> None:
        """The last bytes; the answer is whole."""
