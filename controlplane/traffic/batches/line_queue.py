"""The unanswered lines of a batch, by requested model. Pure; times are in seconds on any clock."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from controlplane.traffic.batches.lines import Line, Reason

PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # pause after a refusal; doubles each time and is at least its Retry-After


@dataclass(slots=True)
class Flow:
    """The lines for one model. After a refusal, one line at a time tests whether the reason still holds."""

    model: str
    remaining: deque[tuple[int, Line]] = field(default_factory=deque)
    delayed: list[tuple[float, int, Line]] = field(default_factory=list)  # heap of failed lines by next try
    under_way: int = 0
    reason: Reason | None = None
    paused_at: float = float("-inf")
    paused_until: float = float("-inf")
    pauses: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.remaining or self.delayed)

    def may_send(self, now: float) -> bool:
        if now < self.paused_until or (self.reason is not None and self.under_way):
            return False
        return bool(self.remaining) or bool(self.delayed and self.delayed[0][0] <= now)

    def take(self, now: float) -> tuple[int, Line]:
        self.under_way += 1
        if self.delayed and self.delayed[0][0] <= now:
            return heappop(self.delayed)[1:]
        return self.remaining.popleft()

    def refuse(self, reason: Reason, retry_after_s: float, sent_at: float, now: float) -> None:
        """Pause the flow. Refusals of lines that were sent before the last refusal was known count together as one."""
        if sent_at < self.paused_at:
            return
        self.pauses += 1
        known_s = min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(self.pauses - 1, 10))
        self.reason, self.paused_at = reason, now
        self.paused_until = now + min(LONGEST_PAUSE_S, max(retry_after_s, known_s))

    def go_on(self, sent_at: float) -> None:
        """Note a line that was not refused. A line sent before the refusal says nothing about its reason."""
        if sent_at >= self.paused_at:
            self.reason, self.pauses, self.paused_until = None, 0, float("-inf")


class LineQueue:
    def __init__(self, key: int, lines: Iterable[Line], written: Collection[str] = ()) -> None:
        """Queue the lines. `written` are the custom_ids that have been answered."""
        self.key = key
        self.flows: dict[str, Flow] = {}
        self.under_way = 0
        self.leaves = False  # True once no further line will be taken
        for number, line in enumerate(lines, 1):
            if line.custom_id not in written:
                self.flows.setdefault(line.model, Flow(line.model)).remaining.append((number, line))

    @property
    def has_ended(self) -> bool:
        return not self.flows

    def ready(self, now: float) -> Iterator[Flow]:
        """Yield the flows that may send; the flow that sent last comes last."""
        return (flow for flow in self.flows.values() if not self.leaves and flow.may_send(now))

    def take(self, flow: Flow, now: float) -> tuple[int, Line]:
        self.flows[flow.model] = self.flows.pop(flow.model)
        self.under_way += 1
        return flow.take(now)

    def end(self, flow: Flow) -> None:
        """End a line in flight; a line to be tried again has already been put back."""
        flow.under_way -= 1
        self.under_way -= 1
        if flow.is_empty and not flow.under_way:
            del self.flows[flow.model]

    def waiting(self) -> Flow | None:
        """If every line has to wait, return the flow whose reason is tested next."""
        if any(flow.reason is None for flow in self.flows.values()):
            return None
        return min(self.flows.values(), key=lambda flow: flow.paused_until, default=None)

    def is_held_up(self, now: float) -> bool:
        """Return whether the batch could send but has nothing in flight, because it is the turn of other batches."""
        return not self.under_way and next(self.ready(now), None) is not None


def delay(flow: Flow, number: int, line: Line, due: float) -> None:
    """Schedule another attempt at a line, not before `due`."""
    heappush(flow.delayed, (due, number, line))
