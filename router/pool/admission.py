"""Admission of one request to a pool: send it, let it wait for capacity, or refuse it. Pure: time is an argument.

begin ──► deciding ───────────────── admits ──► admitted ── begin (its instance failed) ──► deciding
           ▲  └─────── put_off ──► refused
           │  └─ put_off ──► queued ── resume (its time is up) ──► refused
           └─ resume ── woken ◄─┘

The router drives it by its event loop (router/serving/admit.py), the twin by its virtual clock
(controlplane/evidence/twin/simulation/simulate.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from router.policy.types import Decision, ParsedPolicy
from router.pool.queue.admission_queue import AdmissionQueue, QueueFull
from router.pool.queue.class_queue import QueueEntry
from router.pool.wake import WakeHold

NO_LIMIT = 2**31  # stands for no limit on waiting requests; requests held for a wake have another limit
OUTPUT_COST = 2  # an output token costs as much as this many uncached tokens of the prompt
STRATEGY_REFUSALS = ("over_ttft_limit",)  # rules by which a strategy refuses a request, also used as error codes
CODES = (
    *("saturated", "displaced", "queue_timeout", "deadline_exceeded", "deadline_unmeetable", "no_instance_ready"),
    "waking",
    *STRATEGY_REFUSALS,
)

State = Literal["deciding", "queued", "woken", "admitted", "refused", "abandoned"]


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait until `Admission.when_woken` calls back or the time `until`; then call `resume`."""

    until: float  # s, of the caller's clock


@dataclass(frozen=True, slots=True)
class Refusal:
    code: str
    status: int
    reason: str
    retry_after_s: int | None = None


class Admission:
    """All times are in seconds on one clock, the caller's."""

    _policy: ParsedPolicy  # the policy at the latest decision

    def __init__(
        self,
        queue: AdmissionQueue,
        started: float,
        tenant: str = "",
        deadline: float | None = None,
        band: int = 0,
        output_limit: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`output_limit`: the request's max_tokens; called only if the request has to queue."""
        self._queue = queue
        self._started = started
        self._tenant = tenant
        self._band = band
        self._output_limit = output_limit
        self._deadline = deadline  # latest time for choosing an instance
        self._entry: QueueEntry | None = None
        self.is_charged = False  # its tenant was charged when the request queued
        self._callback: Callable[[], None] | None = None
        self._queued_at = 0.0
        self.state: State = "deciding"
        self.queued_s = 0.0  # waiting time of all attempts
        self.held_s = 0.0  # part of `queued_s` spent waiting for a ready instance
        self._hold: WakeHold | None = None  # set while the request waits for an instance
        self.wait: Wait | None = None  # the current or latest wait

    def begin(self, now: float) -> Refusal | None:
        if self._entry is not None:
            self.settle(0, 0)  # ends the failed attempt
        self.state, self._entry, self.is_charged = "deciding", None, False
        return self._late(now) if self._deadline is not None and now >= self._deadline else None

    def admits(self, decision: Decision, now: float) -> bool:
        """Return whether to send the request as decided; otherwise call `put_off`."""
        entry = self._entry
        if not decision.instance:
            return False
        if entry is None and self._queue.total and not self._queue.comes_first(self._band, now):
            return False
        if entry is not None:
            self._queue.admitted(entry)
        self.state = "admitted"
        return True

    def put_off(
        self,
        decision: Decision,
        policy: ParsedPolicy,
        now: float,
        able: Callable[[], bool],
        hold: Callable[[float], WakeHold | None] = lambda now: None,
    ) -> Wait | Refusal:
        """Queue, hold or refuse the request. `able` is True if an instance could take it later; `hold` is set if an
        instance is about to wake."""
        self._policy = policy
        if decision.rule in STRATEGY_REFUSALS:
            return self._refuse(decision.rule, "; ".join(decision.reasons))
        if not able():
            self._hold = hold(now)
            if self._hold is not None:
                return self._held(decision, self._hold, now)
            return self._refuse("no_instance_ready", f"no instance is ready ({'; '.join(decision.reasons)})", 503)
        self._hold = None
        return self._join(decision, now)

    def _held(self, decision: Decision, hold: WakeHold, now: float) -> Wait | Refusal:
        """Wait for an instance to become ready, or continue such a wait."""
        if self._entry is None:
            self._entry = self._new_entry(decision)
            if hold.refused and not (hold.is_full and self._queue.makes_room(self._entry)):
                return self._waking(hold.refused, hold)
        self._is_queued(now)
        self._queue.join(self._entry, NO_LIMIT, self._woken, now=now)
        return self._wait_until(now + hold.max_wait_s - self.held_s)

    def _waking(self, reason: str, hold: WakeHold) -> Refusal:
        return self._refuse("waking", reason, 503, hold.retry_after_s)

    def _new_entry(self, decision: Decision) -> QueueEntry:
        self.is_charged = True
        cost = cost_of(decision.new_tokens, self._queue.outputs.tokens(self._output_limit()))
        return self._queue.entry(decision.request_class, self._tenant, cost, self._band)

    def _join(self, decision: Decision, now: float) -> Wait | Refusal:
        policy, queue = self._policy, self._queue
        if self._entry is None:
            self._entry = self._new_entry(decision)
            unmeetable = self._unmeetable(self._entry, now)
            if unmeetable is not None:
                return unmeetable
        name = self._entry.request_class
        limit: int = policy[f"admission.max_queue_{name}"]
        self._is_queued(now)
        try:
            queue.join(self._entry, limit, self._woken, capacity=bool(decision.instance), now=now)
        except QueueFull:
            reason = f"every instance is full, and so is the queue for {name} requests ({limit})"
            return self._refuse("saturated", reason, retry_after_s=self._retry_after_s(now))
        return self._wait_until(now + policy[f"admission.max_wait_{name}_s"] - (self.queued_s - self.held_s))

    def _is_queued(self, now: float) -> None:
        self.state, self._callback, self._queued_at = "queued", None, now

    def _wait_until(self, until: float) -> Wait:
        self.wait = Wait(until if self._deadline is None else min(until, self._deadline))
        return self.wait

    def _unmeetable(self, entry: QueueEntry, now: float) -> Refusal | None:
        """Refuse early if the queue drains too slowly for the deadline; never after a wakeup."""
        if self._deadline is None:
            return None
        wait_s = self._queue.expected_wait_s(entry, now)
        if wait_s is None or now + wait_s <= self._deadline:
            return None
        left_ms = max(0.0, self._deadline - now) * 1000
        reason = f"the queue would take about {wait_s:.1f} s, the request's deadline leaves {left_ms:.0f} ms"
        return self._refuse("deadline_unmeetable", reason, retry_after_s=self._retry_after_s(now))

    def _woken(self) -> None:
        self.state = "woken"
        if self._callback is not None:
            self._callback()

    def when_woken(self, callback: Callable[[], None]) -> None:
        """Call back when the queued request is woken, or at once if it already has been."""
        self._callback = callback
        if self.state == "woken":
            callback()

    def resume(self, now: float) -> Refusal | None:
        """After a wakeup, decide again; without a wakeup, end the wait."""
        assert self._entry is not None  # noqa: S101 - narrows the type: it has waited
        self._has_waited(now)
        if self.state == "woken":
            self._queue.resume(self._entry)
            if self._entry.displaced:
                return self._displaced(now)
            self.state = "deciding"
            return None
        self._queue.give_up(self._entry)
        if self._deadline is not None and self.wait is not None and self.wait.until >= self._deadline:
            return self._late(now)
        if self._hold is not None:
            return self._waking(f"no instance became ready within {self._hold.max_wait_s:g} s", self._hold)
        name = self._entry.request_class
        limit_s = self._policy[f"admission.max_wait_{name}_s"]
        reason = f"queue timeout: no capacity within the limit of {limit_s:g} s for {name} requests"
        return self._refuse("queue_timeout", reason, retry_after_s=self._retry_after_s(now))

    def _displaced(self, now: float) -> Refusal:
        name = self._entry.request_class if self._entry is not None else ""
        came = "one of higher priority, or of a client with fewer waiting, came"
        reason = f"the queue for {name} requests is full, and {came}"
        return self._refuse("displaced", reason, retry_after_s=self._retry_after_s(now))

    def settle(self, new_tokens: int, output_tokens: int) -> None:
        """Charge the tenant for the actual use of a request that has ended, if the request was queued."""
        if self._entry is not None:
            self._queue.settle(self._entry, cost_of(new_tokens, output_tokens))

    def abandon(self, now: float) -> None:
        """End the wait of a request whose client left."""
        assert self._entry is not None  # noqa: S101 - narrows the type: it has waited
        self._has_waited(now)
        self._queue.give_up(self._entry)
        self.state = "abandoned"

    def _has_waited(self, now: float) -> None:
        waited_s = now - self._queued_at
        self.queued_s += waited_s
        if self._hold is not None:
            self.held_s += waited_s

    def _late(self, now: float) -> Refusal:
        waited = now - self._started
        reason = f"the request's deadline passed before an instance took it, after {waited:.3f} s"
        self.state = "refused"
        return Refusal("deadline_exceeded", 504, reason)

    def _refuse(self, code: str, reason: str, status: int | None = None, retry_after_s: int | None = None) -> Refusal:
        self.state = "refused"
        if self._entry is not None:
            self._queue.leave(self._entry)
        policy = self._policy
        after: int = policy["admission.retry_after_s"] if retry_after_s is None else retry_after_s
        return Refusal(code, status or policy["admission.refuse_status"], reason, after)

    def _retry_after_s(self, now: float) -> int:
        """Return the seconds until a request that joins the queue now would be served, at least the policy's
        minimum."""
        assert self._entry is not None  # noqa: S101 - narrows the type: it has joined, or wanted to
        least: int = self._policy["admission.retry_after_s"]
        wait_s = self._queue.expected_wait_s(self._entry, now)
        return least if wait_s is None else max(least, math.ceil(wait_s))


def cost_of(new_tokens: float, output_tokens: float) -> float:
    """Return the cost of a request to its tenant, in tokens; cached tokens cost nothing."""
    return max(1.0, new_tokens + OUTPUT_COST * output_tokens)
