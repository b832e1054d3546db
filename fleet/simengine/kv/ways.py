"""The dialects in which engines are told to hold blocks and where to pull them from. Pure.

nixl          vLLM's NixlConnector: the prefill's answer says where its blocks are, the decode request brings it along
mooncake_p2p  vLLM's MooncakeConnector: both are told one `transfer_id` beforehand and work at the same time
neuron        both are sent at once; the id of the request says who the other one is
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from fleet.engine.request import Request
from fleet.simengine.kv.connector import Source, Wish
from fleet.simengine.kv.peers import Peers

# As Neuron's proxy writes them: cmpl-<uid>_<address of the other engine>, or cmpl-<uid> in a fixed pair.
_NEURON_ID = re.compile(r"(?:^|-)cmpl-(?P<uid>.+?)(?:_(?P<address>[^_]+:\d+))?$")


def nixl_wish(params: Mapping[str, Any], request_id: str) -> Wish:
    if params.get("do_remote_decode") is True:
        return Wish(hold_as=request_id)
    places = [params.get(name) for name in ("remote_host", "remote_port", "remote_request_id", "remote_engine_id")]
    if params.get("do_remote_prefill") is not True or None in places:
        return Wish()
    host, port, key, engine_id = places
    return Wish(source=Source(f"http://{host}:{port}", str(key), str(engine_id), waits=False))


def nixl_answer(peers: Peers, request: Request) -> dict[str, Any]:
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


def p2p_wish(params: Mapping[str, Any], request_id: str) -> Wish:
    key = params.get("transfer_id")
    if not isinstance(key, str):
        return Wish()
    if params.get("do_remote_decode") is True:
        return Wish(hold_as=key)
    address, engine_id = params.get("remote_bootstrap_addr"), params.get("remote_engine_id")
    if params.get("do_remote_prefill") is not True or not isinstance(address, str) or engine_id is None:
        return Wish()
    return Wish(source=Source(address.rstrip("/"), key, str(engine_id), waits=True))


def neuron_wish(role: str, peer: str | None) -> Callable[[Mapping[str, Any], str], Wish]:
    """By what the engine is there for; `peer`: the other one of a fixed pair."""

    def wish(params: Mapping[str, Any], request_id: str) -> Wish:
        match = _NEURON_ID.search(request_id)
        if match is None or role == "both":
            return Wish()
        key, address = match["uid"], match["address"] or peer
        if role == "prefill":
            return Wish(hold_as=key)
        if address is None:
            return Wish()
        return Wish(source=Source(f"http://{address.removeprefix('http://')}", key, None, waits=True))

    return wish


def no_answer(peers: Peers, request: Request) -> None:
    return None
