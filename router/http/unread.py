"""What a client has not read yet, as far as its own host's memory does not hold it."""

import array
import asyncio
import contextlib
import fcntl
import termios


def unread_bytes(transport: asyncio.WriteTransport) -> int:
    """Of the transport and of the kernel, which takes more only in steps of up to a megabyte."""
    sock = transport.get_extra_info("socket")
    queued = array.array("i", [0])
    with contextlib.suppress(OSError, ValueError, TypeError):  # closed meanwhile
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + queued[0]
