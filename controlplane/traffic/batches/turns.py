"""Chooses the next line: keys take turns, fair by tokens, and the batches of one key share its turns. Pure.

Start-time fair queueing: each line starts where its key's last one ended, or at the global virtual time if that is
later, and the earliest start goes first. A key that waited thus gains no claim on time in which it could not send.
"""

import itertools
from collections import deque
from dataclasses import dataclass, field

from controlplane.traffic.batches.line_queue import Flow, LineQueue
from controlplane.traffic.batches.lines import Line
from controlplane.traffic.batches.pace import FIRST, EngineReports, Pace

MOST_OF_KEY = 64  # lines of a key in flight
MOST_IN_ALL = 256  # lines in flight; in addition, one of each key that has none
FIRST_TOKENS = 500.0  # assumed tokens per line until the key's first answers are known
OUTPUT_WEIGHT = 2  # weight of an output token relative to a prompt token, as in the routers' queues
LEARNED = 0.1  # weight of the latest answer in the estimate for a key's next line


@dataclass(slots=True)
class Lane:
    """The lines for one model, of all keys."""

    under_way: int = 0
    peak: int = 0  # the most under way since the last look at the engines
    pace: Pace = field(default_factory=Pace)


@dataclass(slots=True)
class _Key:
    queues: deque[LineQueue] = field(default_factory=deque)
    under_way: int = 0
    finish: float = 0.0  # virtual finish of its last line, tokens
    tokens: float = FIRST_TOKENS  # estimated tokens of its next line
    turn: int = 0  # number of its last turn


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A line in flight."""

    queue: LineQueue
    flow: Flow
    number: int
    line: Line
    tokens: float  # tokens charged
    sent_at: float


class Turns:
    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.under_way = 0
        self._keys: dict[int, _Key] = {}
        self._now = 0.0  # virtual start of the last line, tokens
        self._count = itertools.count(1)

    def add(self, queue: LineQueue) -> None:
        self._keys.setdefault(queue.key, _Key()).queues.append(queue)

    def remove(self, queue: LineQueue) -> None:
        """Remove a batch's queue. Its lines in flight still have to be settled."""
        key = self._keys.get(queue.key)
        if key is not None and queue in key.queues:
            key.queues.remove(queue)

    def next(self, now: float) -> Ticket | None:
        """Take the next line; None while nothing may be sent."""
        able = (key for key in self._keys.values() if self._may_have_another(key))
        for key in sorted(able, key=lambda key: (max(self._now, key.finish), key.turn)):
            for queue in key.queues:
                for flow in queue.ready(now):
                    if self._has_room(key, self.lanes.setdefault(flow.model, Lane())):
                        return self._take(key, queue, flow, now)
        return None

    def _may_have_another(self, key: _Key) -> bool:
        return key.under_way < MOST_OF_KEY and (self.under_way < MOST_IN_ALL or not key.under_way)

    def _has_room(self, key: _Key, lane: Lane) -> bool:
        """Tell whether the lane takes another line of a key. Its first one does not wait for long answers of others,
        unless the lane was narrowed for other traffic."""
        return lane.under_way < lane.pace.most or (not key.under_way and lane.pace.most > FIRST)

    def _take(self, key: _Key, queue: LineQueue, flow: Flow, now: float) -> Ticket:
        number, line = queue.take(flow, now)
        key.queues.remove(queue)
        key.queues.append(queue)
        self._now = max(self._now, key.finish)
        key.finish, key.turn = self._now + key.tokens, next(self._count)
        key.under_way += 1
        self.under_way += 1
        lane = self.lanes[flow.model]
        lane.under_way += 1
        lane.peak = max(lane.peak, lane.under_way)
        return Ticket(queue, flow, number, line, key.tokens, now)

    def settle(self, ticket: Ticket, tokens: tuple[int, int] | None) -> None:
        """End a line in flight; `tokens` of its prompt and answer, None if nothing was computed."""
        ticket.queue.end(ticket.flow)
        self.under_way -= 1
        self.lanes[ticket.flow.model].under_way -= 1
        key = self._keys[ticket.queue.key]
        key.under_way -= 1
        needed = 0.0 if tokens is None else float(tokens[0] + OUTPUT_WEIGHT * tokens[1]) or ticket.tokens
        key.finish += needed - ticket.tokens
        if needed:
            key.tokens += LEARNED * (needed - key.tokens)

    def pace(self, load: EngineReports) -> None:
        """Widen or narrow each lane by the load of its engines; forget unused keys and lanes."""
        self._keys = {
            name: key for name, key in self._keys.items() if key.queues or key.under_way or key.finish > self._now
        }
        needed = {model for key in self._keys.values() for queue in key.queues for model in queue.flows}
        self.lanes = {model: lane for model, lane in self.lanes.items() if lane.under_way or model in needed}
        for model, lane in self.lanes.items():
            lane.pace.step(load.of(model), lane.peak)
            lane.peak = lane.under_way
