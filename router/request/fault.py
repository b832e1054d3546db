"""Whose fault it is that a request failed: one engine's, or the request's own, as a second engine fails alike.

The rule, with its numbers, is in docs/router.md.
"""

from router.contract import verdict
from router.contract.net import engine_key
from router.pool import failure_attribution
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.outcome import Failure
from router.upstream.errors import AnswerStalled, ConnectionBroken, FirstByteTimeout, UpstreamError

FAILED = "failed"  # the engine answered, with a failure of its own
BROKEN = "broken"  # the engine closed the connection: its process may have ended
LATE = "late"
KEY = "key"  # the engine does not take the key of its pool


def failed(call: Call, endpoint: Endpoint, kind: str = FAILED) -> None:
    """Count an answer that is a failure."""
    failure_attribution.failed(call.pool, endpoint, call.tenant)
    call.outcome.failures.append(Failure(endpoint, kind, counted=True))


def is_about_the_engines_key(call: Call, endpoint: Endpoint, status: int) -> bool:
    """Whether the engine asks for a key that no client can help."""
    known, sent = call.key is not None, call.request.forwarded
    return engine_key.is_engines(status, endpoint.engine_key, sent=sent, known=known)


def words(endpoint: Endpoint, status: int) -> str:
    """What such an answer says of the engine."""
    if endpoint.engine_key:
        return f"answered {status} to its engine key"
    return f"answered {status}: it asks for a key, and none is named ({engine_key.OPTION})"


def is_doubted(call: Call, endpoint: Endpoint, status: int | None) -> bool:
    """Whether another engine is to be asked, as this one called the request wrong: that counts then, until the other
    one says the same."""
    if status not in verdict.DOUBTFUL and not endpoint.breaker.is_doubted:
        endpoint.breaker.answered()
        endpoint.breaker.rejected()
        return False
    failed(call, endpoint, f"status {status}")
    return True


def upstream_failed(call: Call, endpoint: Endpoint, error: UpstreamError) -> None:
    """Count a failure without a readable answer."""
    before = endpoint.breaker.failures
    failure_attribution.attribute(call.pool, endpoint, error, call.tenant)
    counted = endpoint.breaker.failures > before
    call.outcome.failures.append(Failure(endpoint, _kind(error), counted))


def _kind(error: UpstreamError) -> str:
    if isinstance(error, FirstByteTimeout | AnswerStalled):
        return LATE
    return BROKEN if isinstance(error, ConnectionBroken) else ""


def is_spent(call: Call) -> bool:
    """Whether the request is tried on no further engine: it failed alike on two, or may have ended one and then failed
    on another."""
    return _are_alike(call) or any(failure.kind == BROKEN for failure in _earlier(call))


def _earlier(call: Call) -> list[Failure]:
    """Failures on other instances than the latest one."""
    failures = call.outcome.failures
    return [failure for failure in failures[:-1] if failure.endpoint.instance != failures[-1].endpoint.instance]


def _are_alike(call: Call) -> bool:
    failures = call.outcome.failures
    kind = failures[-1].kind if failures else ""
    return bool(kind) and kind in [failure.kind for failure in _earlier(call)]


def forgive(call: Call, alone: str = "") -> bool:
    """Take the counts of alike failures back. False if they stay: they differ, or these engines serve nobody.

    `alone`: a kind of failure that one engine's word is enough for, as no other can be asked.
    """
    kind = call.outcome.failures[-1].kind
    if not _are_alike(call) and (not alone or alone == FAILED):
        return False
    counted = [failure.endpoint for failure in call.outcome.failures if failure.counted and failure.kind == kind]
    return all([failure_attribution.take_back(call.pool, endpoint) for endpoint in counted])
