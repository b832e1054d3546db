"""Distinguishes a client that has only finished sending from one that is gone: they differ only once data is sent.

A gone client's kernel answers any data with a reset. An interim response (RFC 9110, 15.2) or, within a stream of
events, a comment is data that a waiting client ignores.
"""

import asyncio
import socket

PROBES_S = 5.0  # between two probes
ANSWER_S = 0.2  # time for the reset to arrive
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
COMMENT = b":\n\n"
_CLOSE_WAIT = 8  # linux/tcp_states.h: the other side has finished sending


def is_gone(transport: asyncio.BaseTransport) -> bool:
    """Tell whether the connection was reset after the client had finished sending."""
    sock = transport.get_extra_info("socket")
    if sock is None or not hasattr(socket, "TCP_INFO"):
        return False
    state: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state[0] != _CLOSE_WAIT
