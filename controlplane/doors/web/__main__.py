"""`python -m controlplane.web`: the web process, under `manage.py up`, systemd, Docker and Helm alike."""

import argparse

import uvicorn

from controlplane.base.process import env, private_files
from controlplane.doors.web.protocol import BoundedProtocol

MAX_WEBSOCKET_MESSAGE = 4096  # bytes; browsers send no messages
STOP_S = 1  # time for running requests at the end


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m controlplane.web", description="Weir's web server.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    private_files.guard()
    proxies = env.words("WEIR_TRUSTED_PROXIES")
    uvicorn.run(
        "controlplane.asgi:application",
        host=given.host,
        port=given.port,
        http=BoundedProtocol,
        ws="websockets-sansio",
        ws_max_size=MAX_WEBSOCKET_MESSAGE,
        ws_per_message_deflate=False,  # controlplane/live/dashboard/bridge.py deflates once for all viewers.
        lifespan="on",
        # Without a proxy, X-Forwarded-For is ignored.
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        log_config=None,  # Django configures logging.
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_S,
    )


if __name__ == "__main__":
    main()
