"""Prefill and decode on the same instance: the request is sent once, the answer comes back unchanged."""

from router.policy.types import Policy
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.upstream.connection import Connection


async def serve(call: Call, endpoint: Endpoint, policy: Policy) -> Connection:
    request = call.request
    return await endpoint.upstream.open(
        b"POST %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n%b"
        % (request.target, endpoint.upstream.authority, request.forwarded, len(request.body), request.body),
        connect_timeout_s=policy["failure.connect_timeout_s"],
        first_byte_timeout_s=policy["failure.first_byte_timeout_s"],
    )
