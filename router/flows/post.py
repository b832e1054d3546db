"""A request as an engine is sent it."""

from router.pool.endpoint import Member
from router.request.call import Call
from router.upstream.connection import Connection


async def post(
    call: Call, member: Member, body: bytes, *, first_byte_timeout_s: float, forwarded: bytes | None = None
) -> Connection:
    """The connection once the answer has begun; the caller releases it. Raises UpstreamError."""
    lines = call.forwarded if forwarded is None else forwarded
    return await member.upstream.open(
        b"POST %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n%b"
        % (call.target, member.upstream.authority, lines, len(body), body),
        connect_timeout_s=call.pool.policy["failure.connect_timeout_s"],
        first_byte_timeout_s=first_byte_timeout_s,
    )
