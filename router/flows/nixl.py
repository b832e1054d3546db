"""vLLM's NixlConnector: the prefill's answer locates the held blocks, the decode request passes that on."""

from router.contract.json_value import JsonObject
from router.flows import bodies
from router.flows.decode import decode
from router.flows.prefill import prefill
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload, PrefillFailed
from router.upstream.connection import Connection

HOLD: JsonObject = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


async def serve(call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, tokens: int) -> Connection:
    asked = bodies.prefill(call.request.prompt.document, call.api_path, HOLD)
    answer = await prefill(call, prefiller, offload, asked, tokens)
    params = answer.get("kv_transfer_params")
    if not isinstance(params, dict) or params.get("do_remote_prefill") is not True:
        raise PrefillFailed(f"{prefiller.id}: the answer has no kv_transfer_params")
    offload.kept = bodies.decode(call.request.body, params)
    return await decode(call, decoder, offload, offload.kept)
