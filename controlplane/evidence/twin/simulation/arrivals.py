"""Sending times of requests, as in a replay: by the clock, or session by session."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from controlplane.evidence.traces.types import TraceRequest

Arrival = tuple[float, TraceRequest]  # (time in s, request)


class Arrivals:
    def __init__(self, requests: Sequence[TraceRequest], pacing: str, duration_s: float = math.inf) -> None:
        """Schedule requests. `pacing`: "timestamps" or "closed_loop"; `duration_s`: end of a closed loop."""
        self._duration_s = duration_s if pacing == "closed_loop" else math.inf
        self._first: list[TraceRequest] = []
        self._next: dict[int, TraceRequest] = {}  # next request by the index of the previous turn
        if pacing == "closed_loop":
            self._in_turns(requests)
        else:
            self._first = list(requests)

    def _in_turns(self, requests: Sequence[TraceRequest]) -> None:
        ordered = sorted(requests, key=lambda request: (request.session, request.index))
        for _, group in groupby(ordered, key=lambda request: request.session):
            turns = list(group)
            self._first.append(turns[0])
            self._next |= {before.index: turn for before, turn in pairwise(turns)}

    def first(self) -> Iterator[Arrival]:
        """Yield the requests that do not wait for an answer."""
        yield from ((request.at_s, request) for request in self._first if request.at_s < self._duration_s)

    def after(self, request: TraceRequest, now: float) -> Arrival | None:
        """Return the request that follows this one, which has just ended."""
        following = self._next.get(request.index)
        if following is None or now + following.think_s >= self._duration_s:
            return None
        return now + following.think_s, following
