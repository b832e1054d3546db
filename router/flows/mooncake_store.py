"""Mooncake's store: the prefill writes its blocks there, the unchanged request finds them."""

from router.flows import bodies
from router.flows.decode import decode
from router.flows.prefill import prefill
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload
from router.upstream.connection import Connection


async def serve(call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, tokens: int) -> Connection:
    asked = bodies.prefill(call.request.prompt.document, call.api_path)
    await prefill(call, prefiller, offload, asked, tokens)
    offload.kept = call.request.body
    return await decode(call, decoder, offload, offload.kept)
