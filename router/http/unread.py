"""Bytes that clients have not read yet, without those in their own hosts' memory."""

import array
import asyncio
import contextlib
import fcntl
import termios
from typing import Protocol

from router.http.clients import ClientConnections


def unread_bytes(transport: asyncio.WriteTransport) -> int:
    """Return the unread bytes in transport and kernel; the kernel accepts more only in steps of up to a megabyte."""
    sock = transport.get_extra_info("socket")
    queued = array.array("i", [0])
    with contextlib.suppress(OSError, ValueError, TypeError):  # closed meanwhile
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + queued[0]


class UnreadAnswer(Protocol):
    @property
    def waiting_bytes(self) -> int: ...

    def give_up(self) -> None: ...


class UnreadAnswers:
    """Limits the bytes that wait for all slow clients together: beyond it the longest slow one is disconnected."""

    def __init__(self, clients: ClientConnections) -> None:
        self._clients = clients
        self._held: dict[UnreadAnswer, int] = {}  # bytes at the last check; oldest first
        self._sum = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, client: UnreadAnswer) -> None:
        """Register a client that reads more slowly than we write."""
        self.forget(client)
        self._note(client)
        if self._sum > self._clients.most_unread_bytes:
            for each in list(self._held):
                self._note(each)
            while self._sum > self._clients.most_unread_bytes and len(self._held) > 1:
                self._give_up(next(iter(self._held)))

    def forget(self, client: UnreadAnswer) -> None:
        self._sum -= self._held.pop(client, 0)

    def _note(self, client: UnreadAnswer) -> None:
        size = client.waiting_bytes
        self._sum += size - self._held.get(client, 0)
        self._held[client] = size

    def _give_up(self, client: UnreadAnswer) -> None:
        self.forget(client)
        self._clients.unread += 1
        client.give_up()
