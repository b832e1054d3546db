"""Asks an engine where it publishes its KV events."""

import asyncio

from router.kv_events.sources import KvEventSource, NoEvents, parse
from router.upstream.connection_pool import ConnectionPool
from router.upstream.errors import UpstreamError

TIMEOUT_S = 5.0  # for the whole response too, which may come a byte at a time
LONGEST = 1 << 20  # bytes of a response


async def discover(url: str) -> KvEventSource:
    """Raises NoEvents."""
    upstream = ConnectionPool(url)
    request = b"GET /kv_event_sources HTTP/1.1\r\nhost: %b\r\naccept: application/json\r\n\r\n" % upstream.authority
    try:
        async with asyncio.timeout(TIMEOUT_S):
            status, body = await _asked(upstream, request)
    except UpstreamError as error:
        raise NoEvents(f"/kv_event_sources does not answer: {error}") from None
    except TimeoutError:
        raise NoEvents(f"/kv_event_sources does not answer: no whole answer within {TIMEOUT_S:g} s") from None
    finally:
        upstream.close(running_too=True)
    if status != 200:
        raise NoEvents(f"it publishes no KV events: /kv_event_sources answered {status}")
    if len(body) > LONGEST:
        raise NoEvents(f"its /kv_event_sources is larger than {LONGEST} bytes")
    return parse(body, url)


async def _asked(upstream: ConnectionPool, request: bytes) -> tuple[int, bytes]:
    connection = await upstream.open(request, connect_timeout_s=TIMEOUT_S, first_byte_timeout_s=TIMEOUT_S)
    body = b""
    try:
        while not connection.done and len(body) <= LONGEST:
            body += await connection.read()
        return connection.status, body
    finally:
        connection.release()
