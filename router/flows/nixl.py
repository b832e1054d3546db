"""vLLM's NixlConnector: the prefill's answer locates the held blocks, the decode request passes that on."""

from collections.abc import Mapping
from typing import Any

from router.flows import bodies
from router.flows.decode import decode
from router.flows.prefill import prefill
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload, PrefillFailed
from router.upstream.connection import Connection

HOLD = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


async def serve(
    call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, document: Mapping[str, Any], tokens: int
) -> Connection:
    answer = await prefill(call, prefiller, offload, bodies.prefill(document, call.api_path, HOLD), tokens)
    params = answer.get("kv_transfer_params")
    if not isinstance(params, dict) or params.get("do_remote_prefill") is not True:
        raise PrefillFailed(f"{prefiller.id}: the answer has no kv_transfer_params")
    offload.kept = params
    return await again(call, decoder, offload, params)


async def again(call: Call, decoder: Endpoint, offload: Offload, kept: Mapping[str, Any]) -> Connection:
    """Also on another decoder when the first is unreachable: the blocks are still held."""
    return await decode(call, decoder, offload, bodies.decode(call.request.body, kept))
