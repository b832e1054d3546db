"""One router process, used by `python -m router` and by programs that extend it."""

import argparse
import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable

import uvloop

from router.app import Router
from router.contract.values.secret_text import MaskingFormatter
from router.http.clients import ClientConnections
from router.http.cors import cors
from router.http.server import HttpServer, listen
from router.options import arguments, clients, source, spans_settings
from router.serving.joining import join
from router.serving.pools import Pools
from router.serving.web_relay import WebRelay
from router.source import PoolSource
from router.spans.settings import SpanSettings

KEPT = 32 * 1024 * 1024  # the maximum for glibc; the JSON parser allocates 12 times a body's size
# M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, and M_ARENA_MAX, because only a few threads allocate at the same time
_MALLOPT = {-1: KEPT, -3: KEPT, -8: 1}

Make = Callable[[PoolSource, ClientConnections, SpanSettings | None], Router]


def main() -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return run(arguments(), Router)


def run(options: argparse.Namespace, make: Make, also: str = "") -> int:
    """Run until asked to stop; return the exit status. `make` builds the application; `also` extends the log line."""
    output = logging.StreamHandler()
    output.setFormatter(MaskingFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")))
    logging.basicConfig(level=options.log_level.upper(), handlers=[output])
    listeners = []
    wanted = [(options.port, False), *([(options.shared_port, True)] if options.shared_port else [])]
    for port, shared in wanted:
        try:
            listeners.append(listen(options.host, port, shared=shared))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            print(f"router: cannot listen on {options.host}:{port}: {why}", file=sys.stderr)
            return 1
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = options.url or f"http://{host}:{listeners[0].getsockname()[1]}"
    try:
        limits = clients(options)
        router = make(source(options, url), limits, spans_settings())
        router.cors, router.root = cors(options.cors_origins), options.root_path
        router.web = WebRelay(options.web) if options.web else None
    except ValueError as error:
        print(f"router: {error}", file=sys.stderr)
        return 2
    tame_garbage_collection()
    keep_freed_memory()
    own, *joined = listeners
    said = f"router {options.id} listens on {url}{also and ', '}{also}"
    uvloop.run(serve(HttpServer(router, options.grace, limits), own, joined, router.pools, said))
    return 0


async def serve(server: HttpServer, own: socket.socket, shared: list[socket.socket], pools: Pools, said: str) -> None:
    """Serve until SIGTERM or SIGINT asks for a graceful stop; a second signal ends the process at once. `said` is
    logged once the router listens."""
    asked = asyncio.Event()

    def on_signal(number: int) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    await server.start([own])
    logging.getLogger("weir.router").info(said)
    joining = [asyncio.create_task(join(server, listener, pools)) for listener in shared]
    await asked.wait()
    for task in joining:
        task.cancel()
    await server.stop()


def tame_garbage_collection() -> None:
    """Collect garbage rarely: requests leave no reference cycles, so a collection after every 700 objects only costs
    time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def keep_freed_memory() -> None:
    """Let glibc's allocator keep up to KEPT bytes of freed memory and serve buffers of up to that size from it.
    Otherwise the buffers of each long prompt would be returned to the system, and their pages would be cleared and
    mapped again for the next one: 140 page faults for 400 KB, which take longer than hashing the prompt.
    """
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None:
        for parameter, value in _MALLOPT.items():
            adjust(parameter, value)
