"""Sends a request to an engine, to one of its data-parallel ranks where it has several."""

from collections.abc import Awaitable

from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.upstream.connection import Connection
from router.upstream.rank_numbering import rank_refusal


async def post(
    call: Call,
    endpoint: Endpoint,
    body: bytes,
    forwarded: bytes | None = None,
    first_byte_timeout_s: float | None = None,
) -> Connection:
    """The connection once the answer has begun; the caller releases it. Raises UpstreamError.

    `forwarded`: header lines instead of the client's; `first_byte_timeout_s`: instead of the policy's.
    """
    rules = call.rules
    lines = call.request.forwarded if forwarded is None else forwarded
    limit_s: float = first_byte_timeout_s or rules["failure.first_byte_timeout_s"]

    def opened(rank_line: bytes) -> Awaitable[Connection]:
        return endpoint.upstream.open(
            b"POST %b HTTP/1.1\r\nhost: %b\r\n%b%bcontent-length: %d\r\n\r\n%b"
            % (call.request.target, endpoint.upstream.authority, rank_line, lines, len(body), body),
            connect_timeout_s=rules["failure.connect_timeout_s"],
            first_byte_timeout_s=limit_s,
        )

    connection = await opened(endpoint.rank_line)
    if endpoint.rank_line and (why := await rank_refusal(connection, limit_s)):
        connection.release()
        endpoint.ranks.refused(endpoint, why)
        connection = await opened(b"")
    return connection
