"""Whole answers of bounded size."""

import asyncio

from router.upstream.connection import Connection
from router.upstream.connection_pool import ConnectionPool


async def whole(connection: Connection, largest: int) -> bytes:
    """The rest of the answer; of a longer one a part that is longer than `largest` bytes."""
    parts, size = [], 0
    while not connection.done and size <= largest:
        parts.append(await connection.read())
        size += len(parts[-1])
    return b"".join(parts)


async def get(url: str, path: str, timeout_s: float, largest: int) -> tuple[int, bytes]:
    """(status, body as of `whole`), over a connection of its own. Raises UpstreamError; TimeoutError when the whole
    answer took longer: it may come a byte at a time."""
    upstream = ConnectionPool(url)
    request = b"GET %b HTTP/1.1\r\nhost: %b\r\naccept: application/json\r\n\r\n" % (path.encode(), upstream.authority)
    try:
        async with asyncio.timeout(timeout_s):
            connection = await upstream.open(request, connect_timeout_s=timeout_s, first_byte_timeout_s=timeout_s)
            try:
                return connection.status, await whole(connection, largest)
            finally:
                connection.release()
    finally:
        upstream.close(running_too=True)
