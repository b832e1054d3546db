"""Mooncake in vLLM. With a store, the prefill writes its blocks to the store, and the unchanged request reads them
there. Peer to peer (MooncakeConnector), both instances get one transfer id and work at the same time, and the decoder
fetches the blocks once they are computed. The prefill's engine id changes with its process, so it is queried again
after a failure.
"""

import orjson

from router.flows import bodies
from router.flows.decode import decode
from router.flows.prefill import prefill
from router.flows.together import bootstrap, both_halves
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload, PrefillFailed
from router.upstream.connection import Connection
from router.upstream.errors import UpstreamError
from router.upstream.fetch import get

QUERY_S = 5.0  # time-out of a bootstrap server's answer
LARGEST = 1024 * 1024  # bytes of the answer; a longer one is cut off and is then invalid JSON
LONGEST_ID = 256  # characters


async def through_store(
    call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, tokens: int
) -> Connection:
    asked = bodies.prefill(call.request.prompt.document, call.api_path)
    await prefill(call, prefiller, offload, asked, tokens)
    offload.kept = call.request.body
    return await decode(call, decoder, offload, offload.kept)


async def from_peer(call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, tokens: int) -> Connection:
    server = bootstrap(prefiller).geturl()
    if not prefiller.engine_id:
        prefiller.engine_id = await _engine_id(prefiller, server)
    transfer = {"transfer_id": f"xfer-{call.pair_id}"}
    hold = {"do_remote_decode": True, "do_remote_prefill": False} | transfer
    where = {"remote_bootstrap_addr": server, "remote_engine_id": prefiller.engine_id}
    fetch = {"do_remote_decode": False, "do_remote_prefill": True} | transfer | where
    asked = bodies.prefill(call.request.prompt.document, call.api_path, hold)
    halves = asked, bodies.decode(call.request.body, fetch)
    both = both_halves(call, prefiller, decoder, offload, tokens, halves)
    try:
        await both.prefilled()
        return await both.decoded()
    finally:
        if offload.outcome != "ok":
            prefiller.engine_id = ""


async def _engine_id(endpoint: Endpoint, server: str) -> str:
    """Return the engine id of the data-parallel rank."""
    try:
        _, raw = await get(server, "/query", QUERY_S, LARGEST, tls=endpoint.upstream.tls)
        return str(orjson.loads(raw[:LARGEST])[str(endpoint.rank or 0)]["engine_id"])[:LONGEST_ID]
    except (TimeoutError, UpstreamError, ValueError, KeyError, TypeError) as error:
        raise PrefillFailed(
            f"{endpoint.id}: its bootstrap server {server} did not return an engine id: {error}"
        ) from None
