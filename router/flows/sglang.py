"""SGLang's disaggregation (0.5.23): both engines get the request, to meet in a room of the prefill's bootstrap server.

The prefill samples the first token and answers once its blocks have been taken; the decoder's answer begins with that
token, so it passes unchanged. A room serves one attempt: an engine fails, or waits for minutes, in one used before.
"""

import random
from urllib.parse import urlsplit

from router.contract.json_value import JsonObject
from router.flows import bodies
from router.flows.decode import decode
from router.flows.prefill import prefill
from router.flows.together import Together
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload, PrefillFailed, PrefillLate
from router.upstream.connection import Connection

ROOMS = 2**63 - 1  # rooms are numbered in 64 bits with a sign; 0 stands for none


async def serve(call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, tokens: int) -> Connection:
    room = _room(prefiller)
    asked = bodies.beginning(call.request.prompt.document, call.api_path, room)
    both = Together(
        offload,
        prefill(call, prefiller, offload, asked, tokens),
        decode(call, decoder, offload, bodies.with_fields(call.request.body, room)),
    )
    try:
        await both.prefilled()
    except PrefillLate as error:
        raise PrefillLate(f"{error}, or {decoder.id} did not take its KV") from None
    return await both.decoded()


def _room(prefiller: Endpoint) -> JsonObject:
    """Draw a room at the prefill's bootstrap server.

    An engine with data-parallel ranks takes the rank from the room's number unless told otherwise, and refuses a room
    that contradicts the rank it was asked for.
    """
    try:
        where = urlsplit(prefiller.kv.bootstrap)
        host, port = where.hostname, where.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise PrefillFailed(f"{prefiller.id}: its fleet entry has no kv.bootstrap (address of its bootstrap server)")
    ranks, rank = prefiller.ranks.dp.ranks, prefiller.rank or 0
    room: JsonObject = {"bootstrap_host": host, "bootstrap_port": port}
    room["bootstrap_room"] = random.randrange(1, ROOMS // ranks) * ranks + rank % ranks  # noqa: S311 - no secret
    return room | ({"disagg_prefill_dp_rank": rank} if prefiller.rank_line else {})
