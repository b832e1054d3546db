"""Makes the request for the engine: its pool, its prompt, its headers."""

from router.http import headers
from router.http.client import IncomingRequest
from router.request.call import Call
from router.request.request import ProxiedRequest
from router.serving.pools import Pools
from router.serving.reading import strips_usage
from router.tokenize.prompt import Prompt


def prepare(
    call: Call, incoming: IncomingRequest, own: dict[bytes, bytes], read: Prompt, body: bytes, pools: Pools
) -> None:
    """Set the call's pool and request; `own` is the request's headers by name. Raises ErrorResponse."""
    named = own.get(b"x-weir-pool")
    pool = call.pool = pools.pick(named.decode("latin-1") if named is not None else None, read.model)
    turn, pool.turn = pool.turn, pool.turn + 1
    call.request = ProxiedRequest(
        call.api_path.encode() + (b"?" + incoming.query if incoming.query else b""),
        headers.forwarded(incoming.headers, own, call.id),
        body,
        read,
        pool.chains.hashes(read.rendered),
        headers.session(own) or read.session,
        turn,
        strips_usage(read, call.api_path),
    )
    call.session = call.request.session
    ids = read.token_ids
    call.prediction.prompt_tokens = ids if ids is not None else pool.tokens.estimate(len(read.rendered))
