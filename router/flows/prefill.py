"""The first half of an offload: the prefill, with its own lease and breaker."""

import asyncio
import time
from collections.abc import Callable

from router.contract.answer import answers, verdict
from router.contract.answer.said import AnswerError
from router.contract.values.json_value import JsonObject
from router.flows.post import post
from router.policy.value import replace
from router.pool.endpoint import Endpoint
from router.pool.health import failure_attribution
from router.request import fault, predict
from router.request.call import Call
from router.request.offload import (
    Offload,
    PrefillBroken,
    PrefillBusy,
    PrefillErred,
    PrefillFailed,
    PrefillLate,
    PrefillSilent,
    PrefillUnsent,
    PromptRefused,
)
from router.upstream.answer import usage
from router.upstream.errors import FirstByteTimeout, KeyMissing, ProtocolError, RouterExhausted, UpstreamError
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
    """Return the engine's answer to `body`, a prefill of `tokens` new tokens. Raise PrefillFailed. `check` returns why
    the decoder cannot use an answer; an unusable answer counts as a failure of the engine.
    """
    answer = answers.json_object(await _fetch(call, endpoint, offload, body, tokens))
    why = "the answer is not a JSON object" if answer is None else check(answer)
    if why or answer is None:
        fault.failed(call, endpoint)
        raise PrefillBroken(f"{endpoint.id}: {why}")
    learn(offload, endpoint, answer.get("usage"))
    endpoint.breaker.served()
    fault.prefilled(call)
    return answer


async def fetch(call: Call, endpoint: Endpoint, offload: Offload, body: bytes, tokens: int, request_id: str) -> bytes:
    """Do the same as `prefill`, but return the raw answer; `request_id` is the id sent to the engine."""
    raw = await _fetch(call, endpoint, offload, body, tokens, request_id)
    endpoint.breaker.served()
    fault.prefilled(call)
    return raw


async def _fetch(
    call: Call, endpoint: Endpoint, offload: Offload, body: bytes, tokens: int, request_id: str = ""
) -> bytes:
    limit_s = call.rules["failure.prefill_timeout_s"]
    document, leaves_trial = call.request.prompt.document, call.key is not None and bool(call.pool.silent)
    with endpoint.lease(tokens, call.pool.queue.wake, call.outcome, call.tenant, document, leaves_trial):
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
        raise _unanswered(error)(f"{endpoint.id}: {error}") from None
    finally:
        ended = time.perf_counter()
        offload.prefill_ms = (ended - offload.began) * 1000
        if call.tracing is not None:
            call.tracing.prefilled(endpoint.id, offload.began, ended, failure)
        offload.alone = offload.alone and endpoint.requests == 1  # no other request arrived meanwhile
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
    if connection.status >= 400:
        endpoint.progress.refused()
    error = _error_in(raw, call.api_path) if connection.status == 200 else None
    if connection.status != 200 or error is not None:
        raise _failure(call, endpoint, connection.status, error, raw)
    endpoint.breaker.answered()
    endpoint.progress.came()
    return raw


def _error_in(raw: bytes, api_path: str) -> AnswerError | None:
    """Return the error inside an answer of status 200; empty if the prompt was computed."""
    if raw.startswith((b"data:", b"event:", b":")):
        signs = [answers.sign(data) for data in answers.events(raw)]
        errors = [error for _, error in signs if error is not None]
        if not errors and not any(sign == "content" for sign, _ in signs):
            return AnswerError(answers.NO_CONTENT)
        return errors[0] if errors else None
    return answers.wrong_with(answers.said(raw), raw, api_path)


def _failure(call: Call, endpoint: Endpoint, status: int, error: AnswerError | None, raw: bytes) -> PrefillFailed:
    """Count the failure like that of any other request."""
    if error is None:
        is_clients = verdict.of_status(status) == "client_error"
        error = AnswerError(raw[:200].decode("utf-8", "replace"), status, is_clients=is_clients, body=raw)
    why = f"{endpoint.id} answered {status}: {error.message}"
    if fault.is_about_the_engines_key(call, endpoint, error.status):
        fault.failed(call, endpoint, fault.KEY)
        return PrefillBroken(why)
    result = fault.of_error(call, endpoint, error, has_content=False)
    if result == "client_error":
        status = error.status or 400
        return PromptRefused(why, status, is_doubted=fault.is_doubted(call, endpoint, status))
    if result == "refused":
        failure_attribution.has_no_capacity(call.pool, endpoint, call.tenant)
        return PrefillBusy(why)
    fault.failed(call, endpoint)
    return PrefillErred(why)


def _unanswered(error: UpstreamError) -> type[PrefillFailed]:
    if isinstance(error, FirstByteTimeout):
        return PrefillSilent
    if isinstance(error, KeyMissing):
        return PrefillBusy
    return PrefillUnsent if isinstance(error, RouterExhausted) else PrefillBroken


def learn(offload: Offload, endpoint: Endpoint, reported: object) -> None:
    """Copy the usage from the prefill instance, the only one that knows how much of the prompt was cached."""
    used = usage.parse(reported) if isinstance(reported, dict) else None
    if used is not None and used.prompt_tokens is not None:
        offload.prefill_usage = replace(used, cached_tokens=endpoint.cached_tokens(used.cached_tokens))
