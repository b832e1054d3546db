"""Sends a request to an engine."""

from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.upstream.connection import Connection


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
    return await endpoint.upstream.open(
        b"POST %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n%b"
        % (call.request.target, endpoint.upstream.authority, lines, len(body), body),
        connect_timeout_s=rules["failure.connect_timeout_s"],
        first_byte_timeout_s=first_byte_timeout_s or rules["failure.first_byte_timeout_s"],
    )
