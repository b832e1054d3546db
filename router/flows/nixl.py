"""vLLM's NixlConnector: the prefill's answer locates the blocks that it holds, and the decode request carries that
location. Decoders that lend blocks also report the location of their answer's blocks, which the prefill of the
session's next turn receives.
"""

from router.contract.values.json_value import JsonObject
from router.flows import bodies
from router.flows.decode import decode
from router.flows.prefill import prefill
from router.pool.endpoint import Endpoint
from router.pool.load.lent import LentBlocks
from router.request import lending
from router.request.call import Call
from router.request.offload import Offload, PrefillBusy, PrefillErred, PrefillFailed, PrefillLate, PrefillSilent
from router.upstream.connection import Connection

HELD: JsonObject = {"do_remote_decode": True, "do_remote_prefill": False}
HOLD: JsonObject = {
    **HELD,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


async def serve(call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, tokens: int) -> Connection:
    answer = await _prefilled(call, prefiller, offload, tokens)
    params = answer.get("kv_transfer_params")
    if not isinstance(params, dict) or params.get("do_remote_prefill") is not True:
        raise PrefillFailed(f"{prefiller.id}: the answer has no kv_transfer_params")
    fields: JsonObject = {"kv_transfer_params": params}
    offload.tells_ids = lending.tells_ids(call, decoder)
    if offload.tells_ids and lending.ASKED not in call.request.prompt.document:
        fields[lending.ASKED] = True
    offload.kept = bodies.with_fields(call.request.body, fields)
    return await decode(call, decoder, offload, offload.kept)


async def _prefilled(call: Call, prefiller: Endpoint, offload: Offload, tokens: int) -> JsonObject:
    """Return the prefill's answer. The prefill may take blocks that a decoder lends, and computes them if it cannot."""
    offload.lent_by, offload.lent_tokens = "", 0
    document, offered = call.request.prompt.document, lending.offer(call, prefiller)
    if offered is not None:
        if offered.tokens:
            offload.lent_by, offload.lent_tokens = offered.blocks.decoder, offered.tokens
        body = bodies.prefill(document, call.api_path, offered.where | HELD)
        answer = await _with_lent(call, prefiller, offload, body, tokens, offered.blocks)
        if answer is not None:
            return answer
    answer = await prefill(call, prefiller, offload, bodies.prefill(document, call.api_path, HOLD), tokens)
    if offered is not None:  # the lent blocks may have caused the failure
        lending.refused(call, offered.blocks)
        offload.failed.pop(prefiller.id, None)
    return answer


async def _with_lent(
    call: Call, prefiller: Endpoint, offload: Offload, body: bytes, tokens: int, blocks: LentBlocks
) -> JsonObject | None:
    """Return the answer of a prefill that may take the lent blocks; None if the engine failed."""
    try:
        answer = await prefill(call, prefiller, offload, body, tokens)
    except PrefillErred:
        offload.lent_by, offload.lent_tokens = "", 0
        return None
    except PrefillBusy:
        lending.unused(call, blocks)
        raise
    except (PrefillLate, PrefillSilent):
        prefiller.hung_on_lent = True
        raise
    if offload.lent_tokens:
        lending.taken(call, blocks)
    return answer
