"""Detects that an engine's host is unreachable, however long the engine computes. A kernel acknowledges TCP segments
even if the process that should read them is busy or suspended. Without acknowledgements, the host is off or
disconnected, and a request on a kept connection would wait for its whole time limit. TCP_USER_TIMEOUT would detect
that, too, but it also ends connections on which a busy engine has merely stopped reading.
"""

import asyncio
import errno
import socket
import struct

GONE_AFTER = 4  # unacknowledged retransmissions: about 3 s on a fast network, more on a slow one
IDLE_ASK_S = 5  # idle time before the first keep-alive probe
ASK_EVERY_S = 1
ASKED = 3
UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_RETRANSMITS_UNACKED = struct.Struct("=2xB21xI")  # part of struct tcp_info (linux/tcp.h)


def ask_when_idle(transport: asyncio.BaseTransport) -> None:
    """Send TCP keep-alive probes, so that a connection without traffic ends soon after its host becomes unreachable."""
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_ASK_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_EVERY_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASKED)


def is_gone(transport: asyncio.BaseTransport) -> bool:
    """Return whether sent data was retransmitted several times without an acknowledgement."""
    sock = transport.get_extra_info("socket")
    if sock is None or not hasattr(socket, "TCP_INFO"):
        return False
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RETRANSMITS_UNACKED.size)
    retransmits, unacknowledged = _RETRANSMITS_UNACKED.unpack(info)
    return bool(unacknowledged) and retransmits >= GONE_AFTER
