"""Mooncake's store: the prefill writes its blocks there, the unchanged request finds them."""

from collections.abc import Mapping
from typing import Any

from router.flows import bodies
from router.flows.decode import decode
from router.flows.prefill import prefill
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload
from router.upstream.connection import Connection


async def serve(
    call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, document: Mapping[str, Any], tokens: int
) -> Connection:
    await prefill(call, prefiller, offload, bodies.prefill(document, call.api_path), tokens)
    offload.kept = {}
    return await again(call, decoder, offload, {})


async def again(call: Call, decoder: Endpoint, offload: Offload, kept: Mapping[str, Any]) -> Connection:
    return await decode(call, decoder, offload, call.request.body)
