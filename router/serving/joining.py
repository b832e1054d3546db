"""Joins the other routers on the shared port only once this router can serve, because the kernel sends connections
immediately."""

import asyncio
import contextlib
import socket
from typing import Any

from router.http.server import HttpServer
from router.serving.pools import Pools

CHECK_S = 0.05
ALONE_S = 5.0  # time to wait for fleet and keys before checking whether another router serves the port


async def join(server: HttpServer, listener: socket.socket, pools: Pools) -> None:
    """Listen as soon as a fleet and the API keys are known. Without them, listen only if no other router does: clients
    learn more from an error than from a refused connection.
    """
    server.clients.joined = False
    loop = asyncio.get_running_loop()
    check_at = loop.time() + ALONE_S
    while not pools.known or pools.auth.closed:
        await asyncio.sleep(CHECK_S)
        if loop.time() >= check_at:
            if not await _is_served(listener.getsockname()):
                break
            check_at = loop.time() + ALONE_S
    await server.listen(listener)
    server.clients.joined = True


async def _is_served(address: tuple[Any, ...]) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])  # noqa: S104 - compared, not bound
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(host, address[1])
            writer.close()
        return True
    return False
