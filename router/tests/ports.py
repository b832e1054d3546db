"""Free ports for servers that must know theirs before they start.

They lie below the range from which the kernel takes the ports of connections, and every test process beside this one
has others: nothing takes a port between the moment it is found free and the server's start.
"""

import contextlib
import itertools
import os
import socket

_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
# Above 10080, where Chromium opens no page.
_SERVERS = range(10_100 + 1_000 * _PROCESS, 11_000 + 1_000 * _PROCESS)
_ENGINES = range(20_000 + 1_200 * _PROCESS, 21_200 + 1_200 * _PROCESS)
# Each goes once round before it comes again: a port that was just left may still be held by an old connection.
_turns = itertools.count(os.getpid() * 37)
_engine_turns = itertools.count(os.getpid())


def free_ports(count: int) -> list[int]:
    """Ports in a row: several routers take those above the first."""
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
    """The first and the last of 100 ports for a fleet's engines: WEIR_ENGINE_PORTS."""
    first = _ENGINES[next(_engine_turns) % 12 * 100]
    return first, first + 99
