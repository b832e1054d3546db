"""Drives a request's admission (router/pool/admission.py) on the event loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from router.http.errors import ErrorResponse
from router.limits import charge
from router.pool.admission import Admission, Refusal, Wait
from router.request.call import Call

_DEADLINES = (b"x-weir-deadline-ms", b"x-request-deadline-ms")
DEADLINES = frozenset(_DEADLINES)
LONGEST_MS = 86_400_000
LONGEST_DIGITS = 20  # leading zeros included


def deadline(headers: dict[bytes, bytes], started: float) -> float | None:
    """Return the latest time at which the request may be sent to an instance, on the clock of `started`; None without
    the header."""
    name = next((name for name in _DEADLINES if name in headers), None)
    if name is None:
        return None
    given = headers[name].strip()
    milliseconds = int(given) if given.isdigit() and len(given) <= LONGEST_DIGITS else 0
    if not 0 < milliseconds <= LONGEST_MS:
        shown = f"{name.decode()}: {given[:40].decode('latin-1')!r}"
        raise ErrorResponse(400, "invalid_deadline", f"{shown} must be a whole number of ms from 1 to {LONGEST_MS:,}")
    return started + milliseconds / 1000


def output_limit(call: Call) -> int | None:
    return charge.output_limit(call.request.prompt.document, call.api_path)


def settle(call: Call) -> None:
    """Charge the tenant for the request's tokens, by the engine's usage or, for a broken stream, by the tokens of its
    events."""
    admission, decision, usage = call.admission, call.decision, call.outcome.usage
    if admission is None or decision is None or not admission.is_charged:
        return
    if usage is None or usage.prompt_tokens is None:
        if call.outcome.streamed_tokens:
            admission.settle(decision.new_tokens, call.outcome.output_tokens)
        return
    cached = usage.cached_tokens if usage.cached_tokens is not None else decision.cached_tokens
    admission.settle(max(0, usage.prompt_tokens - cached), call.outcome.output_tokens)


async def until_woken(
    admission: Admission, wait: Wait, prepare: Callable[[], Awaitable[None]] | None = None
) -> Refusal | None:
    """Wait for a wakeup; return the refusal if none arrived. `prepare` supplies the inputs of a new decision."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    admission.when_woken(end)
    timer = loop.call_later(wait.until - time.perf_counter(), end)
    try:
        await over
        if prepare is not None and admission.state == "woken":
            await prepare()
    except asyncio.CancelledError:
        admission.abandon(time.perf_counter())
        raise
    finally:
        timer.cancel()
    return admission.resume(time.perf_counter())


def refused(pool: str, refusal: Refusal) -> ErrorResponse:
    after = refusal.retry_after_s
    retry = "" if after is None else f": retry in {after} s"
    return ErrorResponse(
        refusal.status, refusal.code, f"pool {pool}: {refusal.reason}{retry}", retry_after_s=refusal.retry_after_s
    )
