"""Reads a request's body, a large one in a thread, and makes the request for the engine: pool, prompt, headers."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from router.http import headers
from router.http.client import IncomingRequest
from router.http.errors import ErrorResponse
from router.prefix.blocks import chain_salt
from router.request import predict
from router.request.call import Call
from router.request.request import ProxiedRequest
from router.serving.pools import Pools
from router.tokenize import prompt
from router.tokenize.prompt import InvalidBody, Prompt

# A stream tells its usage only when asked, in a chunk of its own. The other APIs always tell it.
USAGE_ON_REQUEST = ("/v1/chat/completions", "/v1/completions")


def read(body: bytes, api_path: str) -> tuple[Prompt, bytes]:
    """The prompt, and the body for the engine. Raises ErrorResponse."""
    try:
        found = prompt.read(body, api_path)
        return found, prompt.with_usage(body, found.document) if strips_usage(found, api_path) else body
    except InvalidBody as error:
        raise ErrorResponse(400, error.code, str(error)) from None


async def read_large(body: bytes, api_path: str) -> tuple[Prompt, bytes]:
    """Like `read`, in a thread, for a body of more than bounds.SMALL bytes."""
    return await asyncio.get_running_loop().run_in_executor(_thread(), read, body, api_path)


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
        pool.chains.hashes(read.rendered, chain_salt(*predict.keyed_by(pool, read))),
        headers.session(own) or read.session,
        turn,
        strips_usage(read, call.api_path),
    )
    call.session = call.request.session
    ids = read.token_ids
    call.prediction.prompt_tokens = ids if ids is not None else pool.tokens.estimate(len(read.rendered))


def strips_usage(read: Prompt, api_path: str) -> bool:
    """The router asks for the usage of the stream, the client does not."""
    return read.stream and not read.usage_asked and api_path in USAGE_ON_REQUEST


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="read")  # one: more would only take turns from the event loop
