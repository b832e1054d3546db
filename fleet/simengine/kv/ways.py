"""The dialects in which engines are told to hold blocks and where to pull them from. Pure.

nixl          vLLM's NixlConnector: the prefill's answer says where its blocks are, the decode request brings it along
mooncake_p2p  vLLM's MooncakeConnector: both are told one `transfer_id` beforehand and work at the same time
neuron        both are sent at once; the id of the request says who the other one is
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from fleet.engine.request import EngineRequest
from fleet.simengine.kv.connector import TransferRequest, TransferSource
from fleet.simengine.kv.peers import PeerConnector

# As Neuron's proxy writes them: cmpl-<uid>_<address of the other engine>, or cmpl-<uid> in a fixed pair.
_NEURON_ID = re.compile(r"(?:^|-)cmpl-(?P<uid>.+?)(?:_(?P<address>[^_]+:\d+))?$")


def nixl_wish(params: Mapping[str, Any], request_id: str) -> TransferRequest:
    if params.get("do_remote_decode") is True:
        return TransferRequest(hold_as=request_id)
    places = [params.get(name) for name in ("remote_host", "remote_port", "remote_request_id", "remote_engine_id")]
    if params.get("do_remote_prefill") is not True or None in places:
        return TransferRequest()
    host, port, key, engine_id = places
    return TransferRequest(source=TransferSource(f"http://{host}:{port}", str(key), str(engine_id), waits=False))


def nixl_answer(peers: PeerConnector, request: EngineRequest) -> dict[str, Any]:
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


def p2p_wish(params: Mapping[str, Any], request_id: str) -> TransferRequest:
    key = params.get("transfer_id")
    if not isinstance(key, str):
        return TransferRequest()
    if params.get("do_remote_decode") is True:
        return TransferRequest(hold_as=key)
    address, engine_id = params.get("remote_bootstrap_addr"), params.get("remote_engine_id")
    if params.get("do_remote_prefill") is not True or not isinstance(address, str) or engine_id is None:
        return TransferRequest()
    return TransferRequest(source=TransferSource(address.rstrip("/"), key, str(engine_id), waits=True))


def neuron_wish(role: str, peer: str | None) -> Callable[[Mapping[str, Any], str], TransferRequest]:
    """By what the engine is there for; `peer`: the other one of a fixed pair."""

    def wish(params: Mapping[str, Any], request_id: str) -> TransferRequest:
        match = _NEURON_ID.search(request_id)
        if match is None or role == "both":
            return TransferRequest()
        key, address = match["uid"], match["address"] or peer
        if role == "prefill":
            return TransferRequest(hold_as=key)
        if address is None:
            return TransferRequest()
        return TransferRequest(
            source=TransferSource(f"http://{address.removeprefix('http://')}", key, None, waits=True)
        )

    return wish


def no_answer(peers: PeerConnector, request: EngineRequest) -> None:
    return None
