"""Asks an instance for the tokens of a prompt that only engines render: vLLM's `/render`, which needs
`--enable-scale-out`. Without an answer the approximate index serves."""

import asyncio
from collections.abc import Iterable

import orjson

from router.contract.redis.published import AS_SGLANG
from router.pool.endpoint import Endpoint
from router.request import predict
from router.request.call import Call
from router.tokenize.tokenizer import NotTokenized, packed
from router.upstream.errors import UpstreamError
from router.upstream.fetch import whole
from router.upstream.keyed import with_key

PATHS = frozenset(("/v1/chat/completions", "/v1/messages", "/v1/responses"))
LIMIT_S = 1.0  # more than a long prompt takes; the request waits for it
AGAIN_S = 60.0  # until an instance is asked again that does not render
LARGEST = 16 * 1024 * 1024  # bytes of an answer
LARGEST_ASKED = 1024 * 1024  # bytes of a body
# Images and sound, which the engine would process twice, and whose blocks have further keys
_MEDIA = (b'"image', b'"input_image', b'"input_audio', b'"audio', b'"video', b'"file', b'"input_file')
_HEAD = b"POST %b%b/render HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n"


async def ask(call: Call) -> None:
    """Ask one instance, and take the tokens."""
    now = asyncio.get_running_loop().time()
    endpoint = _chosen(call.pool.endpoints.values(), now) if _may_ask(call) else None
    if endpoint is None:
        return
    try:
        async with asyncio.timeout(LIMIT_S):
            status, answer = await _answer(call, endpoint)
    except (TimeoutError, UpstreamError):
        status, answer = 0, b""
    tokens = _tokens(answer) if status == 200 else None
    if tokens is not None:
        predict.take(call, tokens)
        call.prediction.untokenized = ""
    elif status != 400:  # a fault of the request
        endpoint.renders_from = now + AGAIN_S


def _may_ask(call: Call) -> bool:
    body = call.request.body
    if call.api_path not in PATHS or call.pool.kv_event_state.reader_name.startswith(AS_SGLANG):
        return False
    return len(body) <= LARGEST_ASKED and not any(kind in body for kind in _MEDIA)


def _chosen(endpoints: Iterable[Endpoint], now: float) -> Endpoint | None:
    able = [each for each in endpoints if each.routable and not each.is_suspect and each.renders_from <= now]
    return min(able, key=lambda each: each.requests, default=None)


async def _answer(call: Call, endpoint: Endpoint) -> tuple[int, bytes]:
    upstream, body, lines = endpoint.upstream, call.request.body, call.request.forwarded
    if endpoint.engine_key:
        lines = with_key(lines, endpoint.engine_key)
    head = _HEAD % (upstream.base, call.api_path.encode(), upstream.authority, lines, len(body))
    connection = await upstream.open(head, body, connect_timeout_s=LIMIT_S, first_byte_timeout_s=LIMIT_S)
    try:
        return connection.status, await whole(connection, LARGEST)
    finally:
        connection.release()


def _tokens(answer: bytes) -> bytes | None:
    """Return the prompt's tokens; None if the answer has none, or has media among them."""
    try:
        given = orjson.loads(answer)
        ids = given["token_ids"]
        return packed(ids) if isinstance(ids, list) and ids and not given.get("features") else None
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError, NotTokenized):
        return None
