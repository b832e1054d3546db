"""`python -m router`: one router process."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from types import FrameType

import uvicorn

from router.app import Router
from router.http.request_limits import RequestLimits
from router.options import arguments, source

KEEP_ALIVE_S = 75  # longer than the balancers in front, so that they close first
BACKLOG = 2048
LINGER_S = 0.2  # at the end: for requests that were on their way on kept connections


class RouterServer(uvicorn.Server):
    """uvicorn's, but a signal asks for a graceful end with exit status 0, and a second one ends at once."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """No new connections, but what has been sent by then is answered, and each answer says that it is the last."""
        loop = asyncio.get_running_loop()
        for listener in sockets or []:
            for taken in waiting(listener):
                await loop.connect_accepted_socket(self._protocol, taken)
        for server in self.servers:
            server.close()
        state = self.server_state
        state.default_headers = [*state.default_headers, (b"connection", b"close")]
        if state.connections:
            await asyncio.sleep(LINGER_S)
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        return RequestLimits(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def waiting(listener: socket.socket) -> Iterator[socket.socket]:
    """Connections that the kernel has made and nobody has accepted: closing the listener would reset them."""
    listener.setblocking(False)
    while True:
        try:
            taken, _ = listener.accept()
        except OSError:
            return
        yield taken


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket; `shared` with other routers, which take connections in turn. OSError when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError):
        listener.close()
        raise
    return listener


def main() -> int:
    options = arguments()
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel("WARNING")
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
    url = f"http://{host}:{listeners[0].getsockname()[1]}"
    try:
        router = Router(source(options, url))
    except ValueError as error:
        print(f"router: {error}", file=sys.stderr)
        return 2
    logging.getLogger("weir.router").info("router %s listens on %s", options.id, url)
    tame_garbage_collection()
    RouterServer(configuration(router, options.grace)).run(sockets=listeners)
    return 0


def tame_garbage_collection() -> None:
    """Requests leave no cycles, so looking for them after every 700 objects is only cost; what is imported stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def configuration(router: Router, grace_s: float) -> uvicorn.Config:
    """Nothing between the socket and us: no access log, no proxy headers, no headers of uvicorn's own."""
    return uvicorn.Config(
        router,
        interface="asgi3",
        http=RequestLimits,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(grace_s) or 1,
    )


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main())
