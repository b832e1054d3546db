"""Runs an ASGI application with uvicorn until SIGTERM or SIGINT, which end it with exit status 0."""

import gc
import signal
import socket
from typing import Any

import uvicorn

GRACE_S = 3  # time for responses in progress at SIGTERM


class EngineCannotStart(Exception):
    """The process cannot start; the message is one line for the operator."""


def listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # Python appends the address
        raise EngineCannotStart(f"cannot listen on {host}:{port}: {reason}") from None


async def serve(app: Any, listening: socket.socket) -> None:
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_S,
    )
    # uvicorn restores these handlers after a graceful stop and raises the signal again; the default handlers would kill
    # the process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    # Objects that exist now stay, so the garbage collector need not visit them again.
    gc.collect()
    gc.freeze()
    await uvicorn.Server(config).serve([listening])
