"""Asks an engine where it publishes its KV events."""

from router.kv_events.sources import KvEventSource, NoEvents, parse
from router.upstream.connection_pool import ConnectionPool
from router.upstream.errors import UpstreamError

TIMEOUT_S = 5.0
LONGEST = 1 << 20  # bytes of a response


async def discover(url: str) -> KvEventSource:
    """Raises NoEvents."""
    upstream = ConnectionPool(url)
    request = b"GET /kv_event_sources HTTP/1.1\r\nhost: %b\r\naccept: application/json\r\n\r\n" % upstream.authority
    try:
        connection = await upstream.open(request, connect_timeout_s=TIMEOUT_S, first_byte_timeout_s=TIMEOUT_S)
        try:
            body = b""
            while not connection.done and len(body) < LONGEST:
                body += await connection.read()
            status = connection.status
        finally:
            connection.release()
    except UpstreamError as error:
        raise NoEvents(f"/kv_event_sources does not answer: {error}") from None
    finally:
        upstream.close(running_too=True)
    if status != 200:
        raise NoEvents(f"it publishes no KV events: /kv_event_sources answered {status}")
    return parse(body, url)
