"""How an engine numbers its data-parallel ranks in a request's header, and whether it knows the rank named by a
request."""

import asyncio

import orjson

from router.contract import ranks
from router.upstream.connection import Connection
from router.upstream.connection_pool import ConnectionPool
from router.upstream.errors import UpstreamError
from router.upstream.fetch import whole
from router.upstream.keyed import with_key

LARGEST = 64 * 1024  # bytes of an answer, read if it may refuse a rank
TIMEOUT_S = 30.0  # limit for a probe, which computes a token
_NAMED = b"data_parallel_rank", b"data-parallel-rank", b"data parallel rank", b"routed_dp_rank"


async def rank_refusal(connection: Connection, limit_s: float) -> str:
    """Return the engine's answer if it refuses the rank that the request names, otherwise "". The answer remains
    unread. Raise UpstreamError. vLLM and SGLang refuse with 400, or inside a stream that has begun with 200.
    """
    if connection.status == 200 and not connection.peek().startswith(b'data: {"error"'):
        return ""
    if connection.status not in (200, 400):
        return ""
    try:
        async with asyncio.timeout(limit_s):
            answer = await connection.peek_whole(LARGEST)
    except TimeoutError:
        return ""
    lower = answer[:LARGEST].lower()
    return answer[:LARGEST].decode("utf-8", "replace").strip() if any(name in lower for name in _NAMED) else ""


async def counts_group(upstream: ConnectionPool, model: str, last: int, key: str = "") -> bool | None:
    """Return whether the engine numbers ranks across its group rather than only its own ranks; None if unknown. `last`
    is the number of its last rank in the group, which exceeds its number of ranks. The probe has a prompt and an answer
    of one token each. `key` is the reference of the key that the engine requires.
    """
    body = orjson.dumps({"model": model, "prompt": "1", "max_tokens": 1})
    lines = b"%b: %d\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (ranks.HEADER, last, len(body))
    try:
        asked = b"POST %b/v1/completions HTTP/1.1\r\nhost: %b\r\n%b\r\n%b" % (
            upstream.base,
            upstream.authority,
            with_key(lines, key),
            body,
        )
        async with asyncio.timeout(TIMEOUT_S):
            connection = await upstream.open(asked, connect_timeout_s=TIMEOUT_S, first_byte_timeout_s=TIMEOUT_S)
            try:
                if await rank_refusal(connection, TIMEOUT_S):
                    return False
                await whole(connection, LARGEST)
                return True if connection.status == 200 else None
            finally:
                connection.release()
    except (UpstreamError, TimeoutError):
        return None
