"""`python -m router`: one router process."""

import gc
import logging
import os
import signal
import socket
import sys
from types import FrameType

import uvicorn

from router.app import Router
from router.intake import Intake
from router.options import arguments, source

KEEP_ALIVE_S = 75  # longer than the balancers in front, so that they close first
BACKLOG = 2048


class Server(uvicorn.Server):
    """uvicorn's, but a signal asks for a graceful end with exit status 0, and a second one ends at once."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. OSError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
    try:
        listener = listen(options.host, options.port)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        print(f"router: cannot listen on {options.host}:{options.port}: {why}", file=sys.stderr)
        return 1
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    try:
        router = Router(source(options, url))
    except ValueError as error:
        print(f"router: {error}", file=sys.stderr)
        return 2
    logging.getLogger("weir.router").info("router %s listens on %s", options.id, url)
    tame_garbage_collection()
    Server(configuration(router, options.grace)).run(sockets=[listener])
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
        http=Intake,
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
