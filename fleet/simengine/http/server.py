"""A uvicorn server that ends by SIGTERM as by success, and its listening socket."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn

GRACE_S = 3  # for answers under way at SIGTERM


class Failed(Exception):
    """The process cannot start; the message is one line for the operator."""


class SimServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A stop that was asked for is a success: uvicorn's own would raise the signal again and exit by it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # Python adds the address once more
        raise Failed(f"cannot listen on {host}:{port}: {reason}") from None
