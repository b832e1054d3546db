"""The fields with which a request asks each peer connector to hold blocks, or names where to pull them from. Pure.

nixl          vLLM's NixlConnector: the prefill's response says where its blocks are, and the decode request
              repeats it
mooncake_p2p  vLLM's MooncakeConnector: both requests carry the same `transfer_id` and run concurrently
neuron        both requests are sent at once; the request id names the other engine
trtllm        TensorRT-LLM's context and generation servers: the second request carries the first one's answer
sglang        SGLang's prefill and decode servers, after its protocol code (0.5.23): both meet in a room of the
              prefill's bootstrap server, here at its own port; the prefill answers once its KV has been taken
"""

import base64
import binascii
import re
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import msgspec

from fleet.engine.request import EngineRequest
from fleet.simengine import generation
from fleet.simengine.http.errors import ApiError
from fleet.simengine.kv.connector import TransferParams, TransferRequest, TransferSource
from fleet.simengine.kv.peers import PeerConnector
from router.contract.values.reading import read_json, read_value

# Format of Neuron's proxy: cmpl-<uid>_<address of the other engine>, or cmpl-<uid> in a fixed pair. The engine prefixes
# each id with its own; the id of a request that it computes alone is only this prefix.
_NEURON_ID = re.compile(r"-cmpl-(?P<uid>.+?)(?:_(?P<address>[^_]+:\d+))?$")

ROOMS_KNOWN = 1_000  # rooms in which a prefill server refuses a second request


class NixlBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """`kv_transfer_params` of a prefill's answer."""

    do_remote_prefill: bool = True
    do_remote_decode: bool = False
    remote_block_ids: list[list[int]]
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    tp_size: int = 1
    remote_num_tokens: int


class OpaqueState(msgspec.Struct, frozen=True):
    """The place where a context server holds the KV; other servers pass it on."""

    url: str
    engine_id: str


class ContextAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`disaggregated_params` of a context server's answer."""

    request_type: str = "context_only"
    first_gen_tokens: list[int]
    ctx_request_id: int
    encoded_opaque_state: str
    draft_tokens: None = None
    disagg_request_id: int | None
    ctx_dp_rank: int = 0
    ctx_info_endpoint: None = None
    schedule_style: None = None
    ctx_usage: None = None


def nixl_request(*, lends: bool = False) -> Callable[[TransferParams, str], TransferRequest]:
    """Return the parser. `lends` is True for a decoder that keeps the blocks of its answers for another engine."""

    def parse(params: TransferParams, request_id: str) -> TransferRequest:
        source = _nixl_source(params)
        if params.do_remote_decode:
            lent = source if params.remote_block_ids and params.remote_num_tokens else None
            return TransferRequest(hold_as=request_id, source=lent)
        if not params.do_remote_prefill or source is None:
            return TransferRequest()
        return TransferRequest(hold_as=request_id if lends else None, source=replace(source, most=None))

    return parse


def _nixl_source(params: TransferParams) -> TransferSource | None:
    host, port, key = params.remote_host, params.remote_port, params.remote_request_id
    engine_id = params.remote_engine_id
    if host is None or port is None or key is None or engine_id is None:
        return None
    return TransferSource(f"http://{host}:{port}", key, engine_id, waits=False, most=params.remote_num_tokens)


def nixl_response(peers: PeerConnector, request: EngineRequest) -> NixlBlocks:
    job = request.owner.job
    lends = bool(job.params.kv.do_remote_prefill)  # an engine that received a prompt lends it and its answer
    tokens = request.computed if lends else request.prompt_tokens
    return NixlBlocks(
        do_remote_prefill=not lends,
        do_remote_decode=lends,
        remote_block_ids=[request.blocks[: -(-tokens // peers.host.block_size)]],
        remote_engine_id=peers.engine_id,
        remote_request_id=job.id,
        remote_host=peers.host.host,
        remote_port=peers.host.port,
        remote_num_tokens=tokens,
    )


def p2p_request(params: TransferParams, request_id: str) -> TransferRequest:
    key, address, engine_id = params.transfer_id, params.remote_bootstrap_addr, params.remote_engine_id
    if key is None:
        return TransferRequest()
    if params.do_remote_decode:
        return TransferRequest(hold_as=key)
    if not params.do_remote_prefill or address is None or engine_id is None:
        return TransferRequest()
    return TransferRequest(source=TransferSource(address.rstrip("/"), key, engine_id, waits=True))


def neuron_request(role: str, peer: str | None) -> Callable[[TransferParams, str], TransferRequest]:
    """Return the parser for an engine of this role. `peer` is the other engine of a fixed pair."""

    def parse(params: TransferParams, request_id: str) -> TransferRequest:
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


def trtllm_request(params: TransferParams, request_id: str) -> TransferRequest:
    kind = params.request_type
    if kind == "context_only":
        return TransferRequest(hold_as=str(_trtllm_id(params, request_id)), first_token=True)
    if kind == "generation_only":
        return TransferRequest(source=_trtllm_source(params))
    if kind in (None, "context_and_generation"):
        return TransferRequest()
    message = f"Unknown request type: {kind}. Must be context_only, generation_only or context_and_generation"
    raise ApiError(400, message, param="disaggregated_params.request_type")


def _trtllm_id(params: TransferParams, request_id: str) -> int:
    given = params.disagg_request_id
    return zlib.crc32(request_id.encode()) if given is None else given


def _trtllm_source(params: TransferParams) -> TransferSource:
    try:
        raw = base64.b64decode(params.encoded_opaque_state or "", validate=True)
        state, key = read_json(raw, OpaqueState), read_value(params.ctx_request_id, int)
    except (binascii.Error, msgspec.DecodeError):
        message = "disaggregated_params: ctx_request_id and encoded_opaque_state of a context answer are required."
        raise ApiError(400, message, param="disaggregated_params") from None
    return TransferSource(state.url, str(key), state.engine_id, waits=False)


def trtllm_response(peers: PeerConnector, request: EngineRequest) -> ContextAnswer:
    job = request.owner.job
    state = OpaqueState(f"http://{peers.host.host}:{peers.host.port}", peers.engine_id)
    return ContextAnswer(
        first_gen_tokens=generation.to_ids(request.owner.answer.text.encode()),
        ctx_request_id=_trtllm_id(job.params.kv, job.id),
        encoded_opaque_state=base64.b64encode(msgspec.json.encode(state)).decode(),
        disagg_request_id=job.params.kv.disagg_request_id,
    )


def sglang_request(role: str) -> Callable[[TransferParams, str], TransferRequest]:
    """Return the parser for a server of this role; one that does both ignores rooms."""
    opened: deque[int] = deque(maxlen=ROOMS_KNOWN)

    def parse(params: TransferParams, request_id: str) -> TransferRequest:
        room = params.bootstrap_room
        if role == "both":
            return TransferRequest()
        if room is None:
            raise ApiError(400, f"Disaggregated request received without bootstrap room id. req.rid={request_id!r}")
        if role == "decode":
            url = f"http://{params.bootstrap_host}:{params.bootstrap_port}"
            return TransferRequest(source=TransferSource(url, str(room), None, waits=True))
        if room in opened:
            raise ApiError(500, f"Prefill bootstrap failed for request req.bootstrap_room={room}: Duplicate room")
        opened.append(room)
        return TransferRequest(hold_as=str(room), first_token=True, always=True)

    return parse


def sglang_response(peers: PeerConnector, request: EngineRequest) -> None:
    """Delay the answer until the decoder has taken the KV, or the hold time is over."""
    request.owner.job.handover = peers.handover(str(request.owner.job.params.kv.bootstrap_room))


def no_response(peers: PeerConnector, request: EngineRequest) -> None:
    return None
