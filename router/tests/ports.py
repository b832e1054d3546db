"""Free ports for servers that must know their port before they start.

The ports lie below the range from which the kernel assigns ephemeral ports, and each parallel test process has
its own range, so nothing takes a port between its check and the server's start.
"""

import contextlib
import itertools
import os
import socket

_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
# Above 10080, the highest port that Chromium blocks.
_SERVERS = range(10_100 + 1_000 * _PROCESS, 11_000 + 1_000 * _PROCESS)
_ENGINES = range(20_000 + 1_200 * _PROCESS, 21_200 + 1_200 * _PROCESS)
# Ports are reused only after all others: an old connection may still hold a port that was just released.
_turns = itertools.count(os.getpid() * 37)
_engine_turns = itertools.count(os.getpid())


def free_ports(count: int) -> list[int]:
    """Return consecutive ports: further routers take the ports above the first."""
    for _ in _SERVERS:
        turn, *_ = itertools.islice(_turns, count)
        first = _SERVERS.start + turn % (len(_SERVERS) - count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return list(range(first, first + count))
    raise AssertionError(f"no {count} free ports in a row")


def free_port() -> int:
    return free_ports(1)[0]


def engine_ports() -> tuple[int, int]:
    """Return the first and last of 100 ports for a fleet's engines: WEIR_ENGINE_PORTS."""
    first = _ENGINES[next(_engine_turns) % 12 * 100]
    return first, first + 99
