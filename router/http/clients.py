"""Limits on clients' connections: how many may be open, how long a client may stall, and counts of exceeded limits."""

import array
import asyncio
import contextlib
import fcntl
import resource
import termios
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

STALL_S = 60.0  # time without progress until a stalled client is disconnected
BODIES = 1024 * 1024 * 1024  # bytes of all request bodies together; each is held until the end of its response
SHARED_FROM = 64 * 1024  # bytes; a larger body counts towards its client's share even if it arrived in one piece
PART_OF_FREE = 4  # a client's bodies are limited to this multiple of the free bytes
UNREAD = 256 * 1024 * 1024  # bytes of answers that clients have not read
RESERVED = 64  # file descriptors for Redis, probes, KV events, log and listeners
PER_CLIENT = 2  # file descriptors: the client's connection and the engine's
MOST_FILES = 1 << 20
RECENT_S = 60.0


@dataclass(slots=True)
class ClientConnections:
    limit: int = 1_000_000
    stall_s: float = STALL_S
    most_body_bytes: int = BODIES
    body_bytes: int = 0  # body bytes of unanswered requests
    # By API key or network: bytes of bodies that are large or arrived in parts
    shares: dict[str, int] = field(default_factory=dict)
    open: set[Any] = field(default_factory=set)
    refused: int = 0  # connections refused at the limit
    closed: int = 0  # idle connections closed to make room
    stalled: int = 0  # stalled clients disconnected
    most_unread_bytes: int = UNREAD
    unread: int = 0  # clients disconnected to free the memory of unread answers
    joined: bool = True  # True if it listens on all of its ports
    _full_at: float = -RECENT_S  # s, monotonic

    def take_share(self, client: str, size: int) -> bool:
        """Count a body towards its client's share; a client's first body always fits. Return False if too little would
        remain for other clients."""
        others = self.shares.get(client, 0)
        if others and others + size > PART_OF_FREE * (self.most_body_bytes - self.body_bytes):
            return False
        self.shares[client] = others + size
        return True

    def leave_share(self, client: str, size: int) -> None:
        self.shares[client] -= size
        if not self.shares[client]:
            del self.shares[client]

    def full(self, *, refused: bool) -> None:
        self._full_at = time.monotonic()
        self.refused += refused
        self.closed += not refused

    def degraded(self) -> list[str]:
        reasons = []
        if not self.joined:
            reasons.append("it does not listen on the shared port yet: it has read no fleet")
        if time.monotonic() - self._full_at < RECENT_S:
            reasons.append(
                f"all {self.limit:,} connections for clients were in use within the last minute "
                f"({self.refused:,} refused, {self.closed:,} idle ones closed since the start)"
            )
        return reasons


class HeldBody:
    """A request's body that arrives through another server than Weir's own."""

    def __init__(self, clients: ClientConnections) -> None:
        self._clients = clients
        self._size = 0
        self._client = ""

    def grow(self, client: str, size: int) -> bool:
        """Count `size` bytes, also towards the client's share. Return False if they do not fit."""
        self.release()
        clients = self._clients
        if clients.body_bytes + size > clients.most_body_bytes or not clients.take_share(client, size):
            return False
        clients.body_bytes += size
        self._client, self._size = client, size
        return True

    def release(self) -> None:
        if self._size:
            self._clients.leave_share(self._client, self._size)
            self._clients.body_bytes -= self._size
            self._size = 0


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as allowed, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def most_clients(descriptors: int) -> int:
    return max(1, (descriptors - RESERVED) // PER_CLIENT)


# Bytes that clients have not read yet, except bytes that have reached the clients' hosts


def unread_bytes(transport: asyncio.WriteTransport) -> int:
    """Return the unread bytes in transport and kernel. The kernel accepts more only in steps of up to a megabyte."""
    sock = transport.get_extra_info("socket")
    queued = array.array("i", [0])
    with contextlib.suppress(OSError, ValueError, TypeError):  # closed in the meantime
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + queued[0]


class UnreadAnswer(Protocol):
    @property
    def waiting_bytes(self) -> int: ...

    def give_up(self) -> None: ...


class UnreadAnswers:
    """Limits the total of bytes that wait for slow clients: beyond the limit, the client that has been slow for longest
    is disconnected."""

    def __init__(self, clients: ClientConnections) -> None:
        self._clients = clients
        self._held: dict[UnreadAnswer, int] = {}  # bytes at the last check; oldest first
        self._sum = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, client: UnreadAnswer) -> None:
        """Register a client that reads more slowly than the router writes."""
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
