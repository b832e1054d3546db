"""Chooses the next line: keys take turns, fair by tokens, and the batches of one key share its turns. Pure. Start-time
fair queueing: each line starts where its key's last line ended, or at the global virtual time if that is later, and the
earliest start goes first. A key therefore gains no credit for time in which it had nothing to send.
"""

import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.traffic.batches.line_queue import Flow, LineQueue
from controlplane.traffic.batches.lines import Line
from router.contract.redis.sample import InstanceSample

MOST_OF_KEY = 64  # lines of a key in flight
MOST_IN_ALL = 256  # lines in flight; each key without one may add one
FIRST_TOKENS = 500.0  # assumed tokens per line until the key's first answers are known
OUTPUT_WEIGHT = 2  # weight of an output token relative to a prompt token, as in the routers' queues
LEARNED = 0.1  # weight of the latest answer in the estimate of a key's next line


# Limits the lines of all batches in flight, by requested model: raised while the engines of its pools have spare
# capacity, lowered once a queue persists there or KV caches are nearly full
FIRST, MOST = 4, 64  # lines in flight
MORE = 2  # lines added at a time, after the first queue
KV_USAGE = 0.8  # mean KV usage above which no line is added
# A request that arrives while a step is being computed waits for the end of the step, even in an idle engine. If every
# such moment counted, other traffic would lower the limit. The minimum of several samples shows a persistent queue
# instead (CoDel, RFC 8289).
LEAST_OF = 3  # samples
SHORT = 1  # waiting requests per engine that do not yet count as a queue
SURGE = 8  # waiting requests that count in a single sample, unless more are running


# Chooses the batches that have a place and take turns, and the batch that gives up its place
PLACES = 32  # batches whose lines are in memory
PLACES_OF_KEY = 2
LEAST_S = 10.0  # shortest time for which a batch keeps its place, because the next batch's file has to be read
TURN_S = 300.0  # time after which a batch that can send makes way for a key without a place


@dataclass(frozen=True, slots=True)
class Queued:
    pk: int
    key: int


@dataclass(frozen=True, slots=True)
class Placed:
    pk: int
    key: int
    for_s: float  # time for which it has had a place
    waits: bool  # whether it waits for an unrelated reason
    leaves: bool  # whether it leaves once its lines in flight have been answered


def claims(placed: Sequence[Placed], queued: Sequence[Queued]) -> list[int]:
    """Return the batches that get a free place: those of keys with the fewest places first; `queued` is in the order of
    waiting."""
    of_key = Counter(place.key for place in placed)
    chosen: list[int] = []
    left = list(queued)
    while left and len(placed) + len(chosen) < PLACES:
        first = min(left, key=lambda batch: of_key[batch.key])  # among equals, the one that has waited longest
        if of_key[first.key] >= PLACES_OF_KEY:
            break
        left.remove(first)
        of_key[first.key] += 1
        chosen.append(first.pk)
    return chosen


def leaver(placed: Sequence[Placed], queued: Sequence[Queued]) -> int | None:
    """Return the batch that gives up its place to a batch without one; None while all may keep theirs."""
    if not queued or any(place.leaves for place in placed):
        return None
    of_key = Counter(place.key for place in placed)
    rest = [place for place in placed if place.for_s >= LEAST_S]
    if len(placed) < PLACES:  # while places are free, only the limit per key can keep batches waiting
        rest = [place for place in rest if place.waits and place.key in {batch.key for batch in queued}]
    else:
        new = any(not of_key[batch.key] for batch in queued)
        rest = [place for place in rest if place.waits or (new and (of_key[place.key] > 1 or place.for_s >= TURN_S))]
    return max(rest, key=lambda place: (place.waits, of_key[place.key], place.for_s)).pk if rest else None


@dataclass(frozen=True, slots=True)
class EngineReports:
    """The latest reports of engines by pool, and the pools that may serve each model name."""

    samples: Mapping[str, Sequence[InstanceSample]] = field(default_factory=dict)
    pools: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def of(self, model: str) -> list[InstanceSample]:
        """Return the samples of the pools that serve the name; for an unknown name, such as an adapter's, of every
        pool."""
        pools = self.pools.get(model, self.samples.keys())
        return [sample for pool in sorted(pools) for sample in self.samples.get(pool, ())]


@dataclass(slots=True)
class LinePace:
    """The number of lines that one model's engines can take in flight."""

    most: int = FIRST
    _is_starting: bool = True  # no queue has been seen, so the limit is doubled
    _read_at: dict[str, float] = field(default_factory=dict)  # engine → time of the latest sample that was read
    _waiting: dict[str, deque[float]] = field(default_factory=dict)  # engine → its latest numbers of waiting requests

    def step(self, samples: Iterable[InstanceSample], lines: int) -> None:
        """Raise or lower the limit by the samples that are new; each counts once. `lines` is the largest number in
        flight since the last step; further requests are other traffic.
        """
        present = list(samples)
        new = [sample for sample in present if sample.at > self._read_at.get(sample.id, float("-inf"))]
        self._note(new, {sample.id for sample in present})
        if not new:
            return
        has_others = sum((sample.running or 0.0) + (sample.waiting or 0.0) for sample in present) > lines
        if any(sample.waiting if has_others else self._has_queue(sample) for sample in new) or _is_full(new):
            self.most, self._is_starting = max(1, self.most // 2), False
            self._waiting.clear()  # samples taken under the higher limit do not apply to the lower one
        else:
            self.most = min(MOST, 2 * self.most if self._is_starting else self.most + MORE)

    def _note(self, new: Iterable[InstanceSample], present: Collection[str]) -> None:
        for sample in new:
            self._read_at[sample.id] = sample.at
            self._waiting.setdefault(sample.id, deque(maxlen=LEAST_OF)).append(sample.waiting or 0.0)
        for kept in (self._read_at, self._waiting):
            for engine in kept.keys() - present:
                del kept[engine]

    def _has_queue(self, sample: InstanceSample) -> bool:
        waiting, latest = self._waiting[sample.id], sample.waiting or 0.0
        stands = len(waiting) == LEAST_OF and min(waiting) > SHORT
        return stands or latest >= max(SURGE, sample.running or 0.0)


def _is_full(samples: Iterable[InstanceSample]) -> bool:
    usages = [sample.kv_usage for sample in samples if sample.kv_usage is not None]
    return bool(usages) and sum(usages) / len(usages) >= KV_USAGE


@dataclass(slots=True)
class Lane:
    """The lines for one model, of all keys."""

    under_way: int = 0
    peak: int = 0  # most lines in flight since the engines were last checked
    pace: LinePace = field(default_factory=LinePace)


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
        """Return whether the lane can take another line of a key. A key's first line need not wait for others' long
        answers, unless the lane was narrowed for other traffic."""
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
        """End a line in flight; `tokens` are those of its prompt and answer, None if nothing was computed."""
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
        """Raise or lower the limit of each lane by the load of its engines; forget unused keys and lanes."""
        self._keys = {
            name: key for name, key in self._keys.items() if key.queues or key.under_way or key.finish > self._now
        }
        needed = {model for key in self._keys.values() for queue in key.queues for model in queue.flows}
        self.lanes = {model: lane for model, lane in self.lanes.items() if lane.under_way or model in needed}
        for model, lane in self.lanes.items():
            lane.pace.step(load.of(model), lane.peak)
            lane.peak = lane.under_way
