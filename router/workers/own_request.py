"""A request by the router itself to an engine, with the same key and rank as clients' requests."""

import asyncio

from router.pool.endpoint import Endpoint
from router.upstream.fetch import whole
from router.upstream.keyed import with_key


async def ask(endpoint: Endpoint, path: str, body: bytes, timeout_s: float, largest: int) -> tuple[int, bytes]:
    """Return (status, body); a body of more than `largest` bytes is cut. Raise UpstreamError or TimeoutError."""
    lines = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n" % (endpoint.rank_line, len(body))
    upstream = endpoint.upstream
    head = (upstream.base, path.encode(), upstream.authority, with_key(lines, endpoint.engine_key), body)
    asked = b"POST %b%b HTTP/1.1\r\nhost: %b\r\n%b\r\n%b" % head
    async with asyncio.timeout(timeout_s):
        connection = await upstream.open(asked, connect_timeout_s=timeout_s, first_byte_timeout_s=timeout_s)
        try:
            return connection.status, await whole(connection, largest)
        finally:
            connection.release()
