"""Reads a request: its pool, its prompt, and what goes on to the engine."""

from router.http import headers
from router.http.client import IncomingRequest
from router.http.errors import ErrorResponse
from router.request.call import Call
from router.request.request import ProxiedRequest
from router.serving.pools import Pools
from router.tokenize import prompt

# A stream tells its usage only when asked, in a chunk of its own. The other APIs always tell it.
USAGE_ON_REQUEST = ("/v1/chat/completions", "/v1/completions")


def prepare(call: Call, incoming: IncomingRequest, own: dict[bytes, bytes], body: bytes, pools: Pools) -> None:
    """Set the call's pool and request; `own` is the request's headers by name. Raises ErrorResponse."""
    try:
        read = prompt.read(body, call.api_path)
    except prompt.InvalidBody as error:
        raise ErrorResponse(400, "invalid_json", str(error)) from None
    named = own.get(b"x-weir-pool")
    pool = call.pool = pools.pick(named.decode("latin-1") if named is not None else None, read.model)
    turn, pool.turn = pool.turn, pool.turn + 1
    strip_usage = read.stream and not read.usage_asked and call.api_path in USAGE_ON_REQUEST
    call.request = ProxiedRequest(
        call.api_path.encode() + (b"?" + incoming.query if incoming.query else b""),
        headers.forwarded(incoming.headers, own, call.id),
        prompt.with_usage(body, read.document) if strip_usage else body,
        read,
        pool.chains.hashes(read.rendered),
        headers.session(own) or read.session,
        turn,
        strip_usage,
    )
    call.session = call.request.session
    ids = read.token_ids
    call.prediction.prompt_tokens = ids if ids is not None else pool.tokens.estimate(len(read.rendered))
