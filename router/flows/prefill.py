"""The first half of an offload: the prefill, with its own lease and breaker."""

import asyncio
import time
from collections.abc import Callable

import orjson

from router.contract import answers, verdict
from router.contract.json_value import JsonObject
from router.flows.post import post
from router.policy.value import replace
from router.pool.endpoint import Endpoint
from router.request import fault, predict
from router.request.call import Call
from router.request.offload import Offload, PrefillBroken, PrefillFailed, PrefillLate, PromptRefused
from router.upstream import usage
from router.upstream.errors import FirstByteTimeout, ProtocolError, RouterExhausted, UpstreamError
from router.upstream.fetch import whole

LARGEST = 16 * 1024 * 1024  # bytes of a prefill's answer; it may list the tokens and blocks of a long prompt


async def prefill(
    call: Call,
    endpoint: Endpoint,
    offload: Offload,
    body: bytes,
    tokens: int,
    check: Callable[[JsonObject], str] = lambda answer: "",
) -> JsonObject:
    """The engine's answer to `body`, a prefill of `tokens` new tokens. Raises PrefillFailed.

    `check`: why the decoder cannot use an answer, which counts as a failure of the engine.
    """
    answer = _parsed(call, endpoint, await _fetch(call, endpoint, offload, body, tokens))
    learn(offload, endpoint, answer.get("usage"))
    if why := check(answer):
        fault.failed(call, endpoint)
        raise PrefillBroken(f"{endpoint.id}: {why}")
    endpoint.breaker.served()
    return answer


async def fetch(call: Call, endpoint: Endpoint, offload: Offload, body: bytes, tokens: int, request_id: str) -> bytes:
    """As `prefill`, with the raw answer; `request_id`: at the engine."""
    raw = await _fetch(call, endpoint, offload, body, tokens, request_id)
    endpoint.breaker.served()
    return raw


async def _fetch(
    call: Call, endpoint: Endpoint, offload: Offload, body: bytes, tokens: int, request_id: str = ""
) -> bytes:
    limit_s = call.rules["failure.prefill_timeout_s"]
    with endpoint.lease(tokens, call.pool.queue.wake, call.outcome):
        return await _leased(call, endpoint, offload, body, limit_s, request_id)


async def _leased(
    call: Call, endpoint: Endpoint, offload: Offload, body: bytes, limit_s: float, request_id: str
) -> bytes:
    offload.alone = endpoint.requests == 1
    call.pool.index.insert(endpoint.id, endpoint.epoch, call.request.chunks)
    sent = predict.computing(call, endpoint)
    offload.began = time.perf_counter()
    failure = "cancelled"
    try:
        async with asyncio.timeout(limit_s):
            raw = await _answer(call, endpoint, body, limit_s, request_id)
        failure = ""
        offload.computed()
        return raw
    except TimeoutError:
        failure = "prefill_timeout"
        raise PrefillLate(f"{endpoint.id} did not compute the prompt within {limit_s:g} s") from None
    except PrefillFailed:
        failure = "prefill_failed"
        raise
    except UpstreamError as error:
        failure = error.code
        fault.upstream_failed(call, endpoint, error)
        kind = PrefillFailed if isinstance(error, FirstByteTimeout | RouterExhausted) else PrefillBroken
        raise kind(f"{endpoint.id}: {error}") from None
    finally:
        ended = time.perf_counter()
        offload.prefill_ms = (ended - offload.began) * 1000
        if call.tracing is not None:
            call.tracing.prefilled(endpoint.id, offload.began, ended, failure)
        offload.alone = offload.alone and endpoint.requests == 1  # and none came while it ran
        predict.over(sent)


async def _answer(call: Call, endpoint: Endpoint, body: bytes, limit_s: float, request_id: str) -> bytes:
    traced = call.tracing.for_prefill(call.request.forwarded) if call.tracing is not None else None
    connection = await post(call, endpoint, body, traced, limit_s, request_id)
    try:
        raw = await whole(connection, LARGEST)
    finally:
        connection.release()
    if len(raw) > LARGEST:
        raise ProtocolError(f"the answer to a prefill is larger than {LARGEST} bytes")
    if connection.status != 200:
        is_keyed = bool(endpoint.engine_key) and connection.status in verdict.KEY_REFUSED
        if verdict.of_status(connection.status, keyed=is_keyed) == "failed_before_content":
            fault.failed(call, endpoint, fault.KEY if is_keyed else fault.FAILED)
        why = f"{endpoint.id} answered {connection.status}: {raw[:200].decode('utf-8', 'replace')}"
        if 400 <= connection.status < 500 and connection.status != 429 and not is_keyed:
            raise PromptRefused(why, connection.status)
        raise (PrefillBroken if connection.status >= 500 or connection.status == 429 else PrefillFailed)(why)
    _require_no_error(call, endpoint, raw)
    endpoint.breaker.answered()
    endpoint.progress.came()
    return raw


def _require_no_error(call: Call, endpoint: Endpoint, raw: bytes) -> None:
    """An engine may report in an answer of status 200, whole or streamed, that it failed. Raises PrefillFailed."""
    said = answers.said(raw)
    error = answers.error_of(said, raw) if said is not None else answers.ending(raw).error
    if error is None:
        return
    result = verdict.of_error(error, has_content=False)
    why = f"{endpoint.id} answered 200 with an error: {error.message}"
    if result == "client_error":
        raise PromptRefused(why, error.status or 400)
    if result == "failed_before_content":
        fault.failed(call, endpoint)
    raise PrefillBroken(why)


def _parsed(call: Call, endpoint: Endpoint, raw: bytes) -> JsonObject:
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        fault.failed(call, endpoint)
        raise PrefillBroken(f"{endpoint.id}: the answer is not JSON: {error}") from None
    if not isinstance(answer, dict):
        fault.failed(call, endpoint)
        raise PrefillBroken(f"{endpoint.id}: the answer is not a JSON object")
    return answer


def learn(offload: Offload, endpoint: Endpoint, reported: object) -> None:
    """Take up the usage that the prefill instance reports: of an offload only it knows what was cached."""
    used = usage.parse(reported) if isinstance(reported, dict) else None
    if used is not None and used.prompt_tokens is not None:
        offload.prefill_usage = replace(used, cached_tokens=endpoint.cached_tokens(used.cached_tokens))
