"""How each peer connector says in a request to hold blocks or where to pull them from. Pure.

nixl          vLLM's NixlConnector: the prefill's response says where its blocks are, and the decode request repeats it
mooncake_p2p  vLLM's MooncakeConnector: both requests carry the same `transfer_id` and run concurrently
neuron        both requests are sent at once; the request id names the other engine
trtllm        TensorRT-LLM's context and generation servers: the first one's answer goes with the second request
"""

import base64
import binascii
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from fleet.engine.request import EngineRequest
from fleet.simengine import tokens
from fleet.simengine.http.errors import ApiError
from fleet.simengine.kv.connector import TransferRequest, TransferSource
from fleet.simengine.kv.peers import PeerConnector

# As Neuron's proxy writes them: cmpl-<uid>_<address of the other engine>, or cmpl-<uid> in a fixed pair. The
# engine puts its own prefix before each id: that of a request that it computes alone has only this one.
_NEURON_ID = re.compile(r"-cmpl-(?P<uid>.+?)(?:_(?P<address>[^_]+:\d+))?$")


def nixl_request(params: Mapping[str, Any], request_id: str) -> TransferRequest:
    if params.get("do_remote_decode") is True:
        return TransferRequest(hold_as=request_id)
    given = [params.get(name) for name in ("remote_host", "remote_port", "remote_request_id", "remote_engine_id")]
    if params.get("do_remote_prefill") is not True or None in given:
        return TransferRequest()
    host, port, key, engine_id = given
    return TransferRequest(source=TransferSource(f"http://{host}:{port}", str(key), str(engine_id), waits=False))


def nixl_response(peers: PeerConnector, request: EngineRequest) -> dict[str, Any]:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(request.blocks)],
        "remote_engine_id": peers.engine_id,
        "remote_request_id": request.owner.job.id,
        "remote_host": peers.host.host,
        "remote_port": peers.host.port,
        "tp_size": 1,
        "remote_num_tokens": request.prompt_tokens,
    }


def p2p_request(params: Mapping[str, Any], request_id: str) -> TransferRequest:
    key = params.get("transfer_id")
    if not isinstance(key, str):
        return TransferRequest()
    if params.get("do_remote_decode") is True:
        return TransferRequest(hold_as=key)
    address, engine_id = params.get("remote_bootstrap_addr"), params.get("remote_engine_id")
    if params.get("do_remote_prefill") is not True or not isinstance(address, str) or engine_id is None:
        return TransferRequest()
    return TransferRequest(source=TransferSource(address.rstrip("/"), key, str(engine_id), waits=True))


def neuron_request(role: str, peer: str | None) -> Callable[[Mapping[str, Any], str], TransferRequest]:
    """For an engine of this role; `peer`: the other engine of a fixed pair."""

    def parse(params: Mapping[str, Any], request_id: str) -> TransferRequest:
        match = _NEURON_ID.search(request_id)
        if match is None or role == "both":
            return TransferRequest()
        key, address = match["uid"], match["address"] or peer
        if role == "prefill":
            return TransferRequest(hold_as=key)
        if address is None:
            return TransferRequest()
        url = f"http://{address.removeprefix('http://')}"
        return TransferRequest(source=TransferSource(url, key, None, waits=False, asks=True))

    return parse


def trtllm_request(params: Mapping[str, Any], request_id: str) -> TransferRequest:
    kind = params.get("request_type")
    if kind == "context_only":
        return TransferRequest(hold_as=str(_trtllm_id(params, request_id)), first_token=True)
    if kind == "generation_only":
        return TransferRequest(source=_trtllm_source(params))
    if kind in (None, "context_and_generation"):
        return TransferRequest()
    message = f"Unknown request type: {kind}. Must be context_only, generation_only or context_and_generation"
    raise ApiError(400, message, param="disaggregated_params.request_type")


def _trtllm_id(params: Mapping[str, Any], request_id: str) -> int:
    given = params.get("disagg_request_id")
    return given if isinstance(given, int) else zlib.crc32(request_id.encode())


def _trtllm_source(params: Mapping[str, Any]) -> TransferSource:
    try:
        state = orjson.loads(base64.b64decode(params["encoded_opaque_state"], validate=True))
        return TransferSource(state["url"], str(params["ctx_request_id"]), state["engine_id"], waits=False)
    except (KeyError, TypeError, ValueError, binascii.Error):
        message = "disaggregated_params: ctx_request_id and encoded_opaque_state of a context answer are required."
        raise ApiError(400, message, param="disaggregated_params") from None


def trtllm_response(peers: PeerConnector, request: EngineRequest) -> dict[str, Any]:
    job = request.owner.job
    state = {"url": f"http://{peers.host.host}:{peers.host.port}", "engine_id": peers.engine_id}
    return {
        "request_type": "context_only",
        "first_gen_tokens": tokens.to_ids(request.owner.answer.text.encode()),
        "ctx_request_id": _trtllm_id(job.params.kv, job.id),
        "encoded_opaque_state": base64.b64encode(orjson.dumps(state)).decode(),
        "draft_tokens": None,
        "disagg_request_id": job.params.kv.get("disagg_request_id"),
        "ctx_dp_rank": 0,
        "ctx_info_endpoint": None,
        "schedule_style": None,
        "ctx_usage": None,
    }


def no_response(peers: PeerConnector, request: EngineRequest) -> None:
    return None
