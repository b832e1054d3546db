"""Whole answers of bounded size."""

import asyncio

from router.contract.net.engine_tls import PLAIN, EngineTls
from router.upstream.connection import Connection
from router.upstream.connection_pool import ConnectionPool
from router.upstream.keyed import with_key


async def whole(connection: Connection, largest: int) -> bytes:
    """Return the rest of the answer; if it is longer than `largest` bytes, cut it shortly beyond that length."""
    parts, size = [], 0
    while not connection.done and size <= largest:
        parts.append(await connection.read())
        size += len(parts[-1])
    return b"".join(parts)


async def get(
    url: str, path: str, timeout_s: float, largest: int, key: str = "", tls: EngineTls = PLAIN
) -> tuple[int, bytes]:
    """Return (status, body as in `whole`), over a separate connection. Raise UpstreamError, or TimeoutError if the
    whole answer takes too long, even if it arrives byte by byte. `key` is the reference of the key that the engine
    requires."""
    upstream = ConnectionPool(url, tls)
    lines = with_key(b"accept: application/json\r\n", key)
    request = b"GET %b%b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (upstream.base, path.encode(), upstream.authority, lines)
    try:
        async with asyncio.timeout(timeout_s):
            connection = await upstream.open(request, connect_timeout_s=timeout_s, first_byte_timeout_s=timeout_s)
            try:
                return connection.status, await whole(connection, largest)
            finally:
                connection.release()
    finally:
        upstream.close(running_too=True)
