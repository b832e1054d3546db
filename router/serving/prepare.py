"""From what came in to what can be decided upon: pool, prompt, tokens, what goes on to the engine."""

from router.http import headers
from router.http.client import IncomingRequest
from router.http.errors import ErrorResponse
from router.request.call import Call
from router.serving.pools import Pools
from router.tokenize import prompt

# Where a stream's usage comes in a chunk of its own, only when asked for. The other APIs always tell.
USAGE_ON_REQUEST = ("/v1/chat/completions", "/v1/completions")


def build(call: Call, incoming: IncomingRequest, own: dict[bytes, bytes], pools: Pools) -> None:
    """Fill the call in; `own` is the request's headers by name. Refusal when it cannot be served."""
    try:
        read = call.prompt = prompt.read(call.body, call.api_path)
    except prompt.InvalidBody as error:
        raise ErrorResponse(400, "invalid_json", str(error)) from None
    named = own.get(b"x-weir-pool")
    call.pool = pools.pick(named.decode("latin-1") if named is not None else None, read.model)
    call.turn, call.pool.turn = call.pool.turn, call.pool.turn + 1
    call.target = call.api_path.encode() + (b"?" + incoming.query if incoming.query else b"")
    call.forwarded = headers.forwarded(incoming.headers, own, call.id)
    call.streamed = read.stream
    if read.stream and not read.usage_asked and call.api_path in USAGE_ON_REQUEST:
        call.body = prompt.with_usage(call.body, read.document)
        call.strip_usage = True
    call.chunks = call.pool.chains.hashes(read.rendered)
    ids = read.token_ids
    call.prompt_tokens = ids if ids is not None else call.pool.tokens.estimate(len(read.rendered))
    call.session = headers.session(own) or read.session
    call.session_shared = call.session is not None
