"""Send a request to an engine, or to one of its data-parallel ranks."""

from collections.abc import Awaitable
from typing import Final

from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.upstream.connection import Connection
from router.upstream.keyed import with_key
from router.upstream.rank_numbering import rank_refusal

# Parts of a request head: engine's path, target, authority, rank header, other header lines, body length
_HEAD: Final = b"POST %b%b HTTP/1.1\r\nhost: %b\r\n%b%bcontent-length: %d\r\n\r\n"


def post(
    call: Call,
    endpoint: Endpoint,
    body: bytes,
    forwarded: bytes | None = None,
    first_byte_timeout_s: float | None = None,
    request_id: str = "",
) -> Awaitable[Connection]:
    """Return the connection once the answer has begun; the caller releases it. Raise UpstreamError.
    `forwarded` replaces the client's header lines, `first_byte_timeout_s` the policy's limit, `request_id` the
    request's id at the engines.
    """
    rules, rank_line = call.candidate or call.pool.policy, endpoint.rank_line  # inlined `Call.rules`
    lines = call.request.forwarded if forwarded is None else forwarded
    if endpoint.engine_key:
        lines = with_key(lines, endpoint.engine_key)
    lines += b"x-request-id: %b\r\n" % (request_id or call.engine_id).encode()
    connect_s: float = rules["failure.connect_timeout_s"]
    limit_s: float = first_byte_timeout_s or rules["failure.first_byte_timeout_s"]
    if rank_line:
        return _post_to_rank(call, endpoint, lines, body, connect_s, limit_s)
    upstream = endpoint.upstream
    head = _HEAD % (upstream.base, call.request.target, upstream.authority, b"", lines, len(body))
    return upstream.open(head, body, connect_timeout_s=connect_s, first_byte_timeout_s=limit_s)


async def _post_to_rank(
    call: Call, endpoint: Endpoint, lines: bytes, body: bytes, connect_s: float, limit_s: float
) -> Connection:
    upstream = endpoint.upstream
    target = call.request.target
    head = _HEAD % (upstream.base, target, upstream.authority, endpoint.rank_line, lines, len(body))
    connection = await upstream.open(head, body, connect_timeout_s=connect_s, first_byte_timeout_s=limit_s)
    if why := await rank_refusal(connection, limit_s):
        connection.release()
        endpoint.ranks.refused(endpoint, why)
        head = _HEAD % (upstream.base, target, upstream.authority, b"", lines, len(body))
        connection = await upstream.open(head, body, connect_timeout_s=connect_s, first_byte_timeout_s=limit_s)
    return connection
