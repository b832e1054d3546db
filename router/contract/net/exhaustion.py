"""Errors caused by this process or its host, not by the other side of a connection."""

import errno
import os
import socket

_EXHAUSTED = (
    *(errno.EMFILE, errno.ENFILE),  # file descriptors
    *(errno.ENOBUFS, errno.ENOMEM),  # kernel memory
    *(errno.EADDRNOTAVAIL, errno.EAGAIN),  # ports for outgoing connections
)


def is_exhausted(error: OSError) -> bool:
    if isinstance(error, socket.gaierror):  # every error number of getaddrinfo may mean that no file could be opened
        return not _opens_a_file()
    return error.errno in _EXHAUSTED


def _opens_a_file() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True
