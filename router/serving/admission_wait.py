"""A request's wait until an instance has room: for how long, and what it is told when it waits no longer.

What is refused is told apart by code: `saturated` (the line is full), `queue_timeout` (it waited for as long as its
class may), `deadline_exceeded` (its own deadline passed), `deadline_unmeetable` (the line would take longer than that).
"""

import asyncio
import math
import time

from router.http.errors import ErrorResponse
from router.policy.types import Decision
from router.pool.admission import QueueEntry, QueueFull
from router.request.call import Call

CODES = ("saturated", "queue_timeout", "deadline_exceeded", "deadline_unmeetable")
DEADLINES = (b"x-weir-deadline-ms", b"x-request-deadline-ms")
LONGEST_MS = 86_400_000
LONGEST_RETRY_S = 120  # a line's pace says little about more


def deadline(headers: dict[bytes, bytes], started: float) -> float | None:
    """When the request must have been sent to an instance, by the clock of `started`; None without such a header."""
    name = next((name for name in DEADLINES if name in headers), None)
    if name is None:
        return None
    given = headers[name].strip()
    if not given.isdigit() or not 0 < int(given[:20]) <= LONGEST_MS:
        shown = f"{name.decode()}: {given[:40].decode('latin-1')!r}"
        raise ErrorResponse(400, "invalid_deadline", f"{shown} must be a whole number of ms from 1 to {LONGEST_MS:,}")
    return started + int(given) / 1000


def check_deadline(call: Call) -> None:
    """ErrorResponse when it has passed: nothing is begun any more."""
    if call.deadline is not None and time.perf_counter() >= call.deadline:
        waited = time.perf_counter() - call.started
        raise ErrorResponse(
            504, "deadline_exceeded", f"its deadline passed before an instance took it, after {waited:.3f} s"
        )


def place(call: Call, decision: Decision) -> QueueEntry:
    cost = decision.new_tokens + call.pool.policy["load.request_tokens"]
    return call.pool.queue.place(decision.request_class, call.tenant, max(1.0, cost))


async def wait(call: Call, decision: Decision, place: QueueEntry) -> None:
    """Return when there may be room. Raises Refusal."""
    pool, name = call.pool, place.request_class
    began = time.perf_counter()
    _check_pace(call, place, began)
    left = pool.policy[f"admission.max_wait_{name}_s"] - call.queued_s
    if call.deadline is not None:
        left = min(left, call.deadline - began)
    try:
        async with asyncio.timeout(left):
            limit = pool.policy[f"admission.max_queue_{name}"]
            await pool.queue.wait(place, limit, room=bool(decision.instance))
    except QueueFull:
        raise _refusal(call, place, "saturated", f"the queue for {name} requests is full") from None
    except TimeoutError:
        check_deadline(call)
        raise _refusal(call, place, "queue_timeout", "it waited for room for as long as its class may") from None
    finally:
        call.queued_s += time.perf_counter() - began


def _check_pace(call: Call, place: QueueEntry, now: float) -> None:
    """Do not let it wait in vain: the line has a pace. Who has been woken once stays."""
    if call.deadline is None or place.called is not None:
        return
    needed = call.pool.queue.drain_s(place.request_class, now)
    if needed is not None and now + needed > call.deadline:
        left_ms = max(0.0, call.deadline - now) * 1000
        why = f"the line would take about {needed:.1f} s, its deadline leaves {left_ms:.0f} ms"
        raise _refusal(call, place, "deadline_unmeetable", why)


def _refusal(call: Call, place: QueueEntry, code: str, why: str) -> ErrorResponse:
    pool = call.pool
    after = retry_after_s(call, place)
    message = f"pool {pool.name}: every instance is full and {why}: retry in {after} s"
    return ErrorResponse(pool.policy["admission.refuse_status"], code, message, retry_after_s=after)


def unwanted(call: Call, decision: Decision) -> ErrorResponse:
    """The route itself refuses it; the code is the rule's name."""
    pool = call.pool
    after: int = pool.policy["admission.retry_after_s"]
    message = f"pool {pool.name}: {'; '.join(decision.reasons)}: retry in {after} s"
    return ErrorResponse(pool.policy["admission.refuse_status"], decision.rule, message, retry_after_s=after)


def retry_after_s(call: Call, place: QueueEntry) -> int:
    """When the line would have been worked off at its pace, but no sooner than the policy says."""
    least: int = call.pool.policy["admission.retry_after_s"]
    needed = call.pool.queue.drain_s(place.request_class, time.perf_counter())
    return least if needed is None else max(least, min(LONGEST_RETRY_S, math.ceil(needed)))
