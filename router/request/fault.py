"""Attributes a failure to one engine, or to the request if a second engine fails in the same way.
The rule, with its numbers, is in docs/router.md.
"""

from collections import Counter

from router.contract.answer import answers, verdict
from router.contract.answer.said import AnswerError
from router.contract.answer.verdict import Result
from router.contract.connectors import AT_ONCE
from router.contract.net import engine_key
from router.pool.endpoint import Endpoint
from router.pool.health import failure_attribution
from router.request.call import Call
from router.request.offload import Offload
from router.request.outcome import Failure
from router.upstream.errors import AnswerStalled, ConnectionBroken, FirstByteTimeout, UpstreamError

FAILED = "failed"  # the engine's answer was a failure
BROKEN = "broken"  # the engine closed the connection, perhaps because it died
LATE = "late"
KEY = "key"  # the engine rejects its pool's key


def failed(call: Call, endpoint: Endpoint, kind: str = FAILED) -> None:
    """Count a failed answer."""
    failure_attribution.failed(call.pool, endpoint, call.tenant)
    _note(call, endpoint, kind, counted=True)


def of_error(call: Call, endpoint: Endpoint, error: AnswerError, *, has_content: bool) -> Result:
    """Return the result of an answer of status 200 that holds an error."""
    if is_about_the_engines_key(call, endpoint, error.status):
        return "failed_after_content" if has_content else "failed_before_content"
    return answers.result_of(error, has_content=has_content, asked=call.request.body)


def is_about_the_engines_key(call: Call, endpoint: Endpoint, status: int | None) -> bool:
    """Return whether the engine rejects a key that the client cannot provide."""
    known, sent = call.key is not None, call.request.forwarded
    return engine_key.is_engines(status, endpoint.engine_key, sent=sent, known=known)


def words(endpoint: Endpoint, status: int | None) -> str:
    """Describe the engine's fault that the answer shows."""
    if endpoint.engine_key:
        return f"answered {status} to its engine key"
    return f"answered {status}: it asks for a key, and none is named ({engine_key.OPTION})"


def is_doubted(call: Call, endpoint: Endpoint, status: int | None) -> bool:
    """Return whether another engine has to confirm that the request is invalid; until then the failure counts against
    this engine."""
    if status not in verdict.DOUBTFUL and not endpoint.breaker.is_doubted:
        endpoint.breaker.answered(computed=False)
        endpoint.breaker.rejected()
        _take_back(call, f"status {status}")  # an engine beyond doubt confirms the earlier ones
        return False
    failed(call, endpoint, f"status {status}")
    return True


def upstream_failed(call: Call, endpoint: Endpoint, error: UpstreamError) -> None:
    """Count a failure without a readable answer."""
    before = endpoint.breaker.failures
    failure_attribution.attribute(call.pool, endpoint, error, call.tenant)
    counted = endpoint.breaker.failures > before
    _note(call, endpoint, _kind(error), counted=counted)


def _note(call: Call, endpoint: Endpoint, kind: str, *, counted: bool) -> None:
    offload = call.outcome.offload
    of_prefill = offload is not None and offload.prefill == endpoint.id
    if of_prefill and call.outcome.is_prefilled and kind != BROKEN:
        kind = ""  # another engine has computed the prompt
    among = {endpoint.instance}
    if offload is not None and kind != BROKEN and (not of_prefill or offload.connector in AT_ONCE):
        among |= _partners(call, offload)
    call.outcome.failures.append(Failure(endpoint, kind, counted, of_prefill, frozenset(among)))


def _partners(call: Call, offload: Offload) -> set[str]:
    """Return both instances of an offload, because either may have failed for lack of the other's KV; return none if
    the decoder computes the prompt itself.
    """
    if offload.outcome in ("fallback", "ineligible"):
        return set()
    ends = (call.pool.endpoints.get(name) for name in (offload.prefill, call.instance))
    return {one.instance for one in ends if one is not None}


def prefilled(call: Call) -> None:
    """Attribute failed prefills to their engines, because another engine has computed the same prompt."""
    failures, offload = call.outcome.failures, call.outcome.offload
    call.outcome.is_prefilled = True
    if failures and offload is not None:
        offload.failed |= {one.endpoint.id: "it failed to compute the prompt" for one in failures if one.of_prefill}
        call.outcome.failures = [one for one in failures if not one.of_prefill]


def _kind(error: UpstreamError) -> str:
    if isinstance(error, FirstByteTimeout | AnswerStalled):
        return LATE
    return BROKEN if isinstance(error, ConnectionBroken) else ""


def is_spent(call: Call) -> bool:
    """Return whether no further engine is tried: the request failed in the same way on two engines, or may have crashed
    one and then failed on another.
    """
    return _are_alike(call) or may_have_ended_one(call)


def may_have_ended_one(call: Call) -> bool:
    """Return whether the request may have crashed an engine before its latest failure on another one."""
    return any(failure.kind == BROKEN for failure in _earlier(call))


def was_sent_on(call: Call) -> bool:
    """Return whether the request may have crashed an engine before it was sent to the latest instance."""
    latest = call.outcome.attempts[-1].instance if call.outcome.attempts else ""
    return any(failure.kind == BROKEN and failure.endpoint.id != latest for failure in call.outcome.failures)


def _earlier(call: Call) -> list[Failure]:
    """Return the failures that cannot be due to an instance of the latest failure."""
    failures = call.outcome.failures
    return [failure for failure in failures[:-1] if failure.among.isdisjoint(failures[-1].among)]


def _are_alike(call: Call) -> bool:
    failures = call.outcome.failures
    kind = failures[-1].kind if failures else ""
    return bool(kind) and kind in [failure.kind for failure in _earlier(call)]


def forgive(call: Call, alone: str = "") -> bool:
    """Undo the counts of equal failures. Return False if the counts stay, because the failures differ or the engines
    serve no requests. `alone` is a kind of failure for which one engine's answer suffices, because no other engine can
    be asked.
    """
    kind = call.outcome.failures[-1].kind
    if not _are_alike(call) and (not alone or alone == FAILED):
        return False
    return _take_back(call, kind)


def _take_back(call: Call, kind: str) -> bool:
    """Undo the failures of this kind; return False if some stay."""
    counted = Counter(failure.endpoint for failure in call.outcome.failures if failure.counted and failure.kind == kind)
    return all([failure_attribution.take_back(call.pool, endpoint, count) for endpoint, count in counted.items()])
