"""The first half of an offload: the prompt is computed on its instance, with a lease and a breaker of its own."""

import asyncio
import time
from typing import Any

import orjson

from router.flows.post import post
from router.pool.endpoint import Member
from router.pool.failure_attribution import blame, failed
from router.request import prediction
from router.request.call import Call
from router.request.offload import Offload, PrefillFailed, PrefillLate
from router.upstream import usage
from router.upstream.connection import Connection
from router.upstream.errors import ProtocolError, UpstreamError

LARGEST = 4 * 1024 * 1024  # bytes of a prefill's answer; it may list the blocks of a long prompt


async def prefill(call: Call, member: Member, offload: Offload, body: bytes, tokens: int) -> dict[str, Any]:
    """The engine's answer to `body`, which makes it compute `tokens` new tokens. Raises PrefillFailed."""
    answer = _parsed(member, await fetch(call, member, offload, body, tokens))
    _learn(offload, answer)
    return answer


async def fetch(
    call: Call, member: Member, offload: Offload, body: bytes, tokens: int, forwarded: bytes | None = None
) -> bytes:
    """As `prefill`, the answer as it came; `forwarded`: other header lines than the client's."""
    limit_s = call.pool.policy["failure.prefill_timeout_s"]
    member.breaker.begin()
    lease = member.lease(tokens)
    offload.alone = member.requests == 1
    call.pool.index.insert(member.id, member.epoch, call.chunks)
    sent = prediction.computing(call, member)
    offload.began = time.perf_counter()
    try:
        async with asyncio.timeout(limit_s):
            return await _answer(call, member, body, limit_s, forwarded)
    except TimeoutError:
        raise PrefillLate(f"{member.id} did not compute the prompt within {limit_s:g} s") from None
    except UpstreamError as error:
        blame(call.pool, member, error)
        raise PrefillFailed(f"{member.id}: {error}") from None
    finally:
        offload.prefill_ms = (time.perf_counter() - offload.began) * 1000
        offload.alone = offload.alone and member.requests == 1  # and nobody came while it ran
        member.breaker.neutral()
        lease.end()
        prediction.over(sent)
        call.pool.queue.wake()


async def _answer(call: Call, member: Member, body: bytes, limit_s: float, forwarded: bytes | None) -> bytes:
    connection = await post(call, member, body, first_byte_timeout_s=limit_s, forwarded=forwarded)
    try:
        raw = await _whole(connection)
    finally:
        connection.release()
    if connection.status != 200:
        if connection.status >= 500 and connection.status != 503:
            failed(call.pool, member)
        raise PrefillFailed(f"{member.id} answered {connection.status}: {raw[:200].decode('utf-8', 'replace')}")
    member.breaker.answered()
    member.breaker.served()
    return raw


async def _whole(connection: Connection) -> bytes:
    parts, size = [], 0
    while not connection.done:
        parts.append(await connection.read())
        size += len(parts[-1])
        if size > LARGEST:
            raise ProtocolError(f"its answer to a prefill is larger than {LARGEST} bytes")
    return b"".join(parts)


def _parsed(member: Member, raw: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise PrefillFailed(f"{member.id}: its answer is not JSON: {error}") from None
    if not isinstance(answer, dict):
        raise PrefillFailed(f"{member.id}: its answer is not an object")
    return answer


def _learn(offload: Offload, answer: dict[str, Any]) -> None:
    told = answer.get("usage")
    used = usage.parse(told) if isinstance(told, dict) else None
    if used is not None and used.prompt_tokens is not None:
        offload.prefill_tokens = used.prompt_tokens - (used.cached_tokens or 0)
