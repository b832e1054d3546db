"""SGLang's disaggregation (0.5.23): both engines receive the request and meet in a room of the prefill's bootstrap
server. The prefill samples the first token and answers once its blocks have been taken. The decoder's answer begins
with that token, so it passes unchanged. A room serves one attempt: in a room used before, an engine fails or waits for
minutes.
"""

import random

from router.contract.values.json_value import JsonObject
from router.flows import bodies
from router.flows.together import bootstrap, both_halves
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload, PrefillLate
from router.upstream.connection import Connection

ROOMS = 2**63 - 1  # room numbers are signed 64-bit integers; 0 means no room


async def serve(call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, tokens: int) -> Connection:
    room = _room(prefiller)
    asked = bodies.beginning(call.request.prompt.document, call.api_path, room)
    halves = asked, bodies.with_fields(call.request.body, room)
    both = both_halves(call, prefiller, decoder, offload, tokens, halves)
    try:
        await both.prefilled()
    except PrefillLate as error:
        raise PrefillLate(f"{error}, or {decoder.id} did not take its KV") from None
    return await both.decoded()


def _room(prefiller: Endpoint) -> JsonObject:
    """Draw a room at the prefill's bootstrap server.
    An engine with data-parallel ranks derives the rank from the room's number unless the request names one, and refuses
    a room that contradicts the named rank.
    """
    server = bootstrap(prefiller)
    ranks, rank = prefiller.ranks.dp.ranks, prefiller.rank or 0
    room: JsonObject = {"bootstrap_host": server.hostname, "bootstrap_port": server.port}
    room["bootstrap_room"] = random.randrange(1, ROOMS // ranks) * ranks + rank % ranks  # noqa: S311 - no secret
    return room | ({"disagg_prefill_dp_rank": rank} if prefiller.rank_line else {})
