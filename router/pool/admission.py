"""Requests that wait in the router until an instance has room: bounded per class, fair between classes and clients.

Room is given by virtual time on two levels (start-time fair queueing: Goyal, Vin, Cheng, 1996). Each class has a clock
that goes on by 1/share with each request that it is given room for, and the class that is furthest behind is next; in
the same way, within the class, each flow (an API key, else a client's address) by its requests' cost in tokens. Who
comes when nobody of the kind waits starts at the present time: nothing is saved up. Within a flow: first come, first
served.
"""

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from router.policy.types import CLASSES, RequestClass
from router.pool.departure_rate import DepartureRate

PASSES = 8  # how many are asked in turn when those before had no use for the room
IDLE_FLOWS = 1024  # clocks kept of flows that nobody of waits


class QueueFull(Exception):
    pass


class Wakeup(Protocol):
    """What a place waits for; the router's are futures."""

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One request's place. Who is woken and finds no room takes it again by waiting with it."""

    order: int
    request_class: RequestClass
    flow: str
    cost: float  # tokens
    turn: Wakeup | None = None  # while it waits
    called: "CapacityOffer | None" = None  # from being woken until it has used or passed on the room
    charge: float = 0.0  # what its class was charged


@dataclass(slots=True)
class CapacityOffer:
    """One room on offer."""

    more: bool  # there may be more than one: who takes it calls the next
    asked: list[QueueEntry] = field(default_factory=list)


class ClassQueue:
    """Those of one class that wait."""

    __slots__ = ("_clock", "_clocks", "_flows", "time")

    def __init__(self) -> None:
        self.time = 0.0  # of the class: requests by share
        self._clock = 0.0  # where the flows are: tokens
        self._clocks: dict[str, float] = {}
        self._flows: dict[str, list[tuple[int, QueueEntry]]] = {}

    def put(self, place: QueueEntry) -> None:
        waiting = self._flows.get(place.flow)
        if waiting is None:
            waiting = self._flows[place.flow] = []
            self._clocks[place.flow] = max(self._clocks.get(place.flow, 0.0), self._clock)
        insort(waiting, (place.order, place))

    def drop(self, place: QueueEntry) -> None:
        waiting = self._flows[place.flow]
        waiting.remove((place.order, place))
        if not waiting:
            del self._flows[place.flow]
            self._forget()

    def _forget(self) -> None:
        """Who has been served does not owe for ever: not beyond the end of the line, nor in a crowd of others."""
        if not self._flows:
            self._clocks.clear()
        elif len(self._clocks) - len(self._flows) > IDLE_FLOWS:
            self._clocks = {flow: self._clocks[flow] for flow in self._flows}

    def first(self, asked: list[QueueEntry]) -> QueueEntry | None:
        """Whose turn it is, of those that have not been asked and are not just leaving."""
        for flow in sorted(self._flows, key=self._turn):
            for _, place in self._flows[flow]:
                if place not in asked and place.turn is not None and not place.turn.done():
                    return place
        return None

    def _turn(self, flow: str) -> tuple[float, int]:
        return self._clocks[flow], self._flows[flow][0][0]

    def charge(self, place: QueueEntry) -> None:
        self._clock = max(self._clock, self._clocks[place.flow])
        self._clocks[place.flow] += place.cost

    def refund(self, place: QueueEntry) -> None:
        if place.flow in self._clocks:
            self._clocks[place.flow] -= place.cost


class AdmissionQueue:
    """The lines of one pool."""

    def __init__(self) -> None:
        self._orders = count(1)
        self._lines: dict[RequestClass, ClassQueue] = {name: ClassQueue() for name in CLASSES}
        self._clock = 0.0
        self._drains = {name: DepartureRate() for name in CLASSES}
        self.shares: Mapping[RequestClass, float] = dict.fromkeys(CLASSES, 1.0)
        self.waiting: Counter[RequestClass] = Counter()  # also those that are called and have not looked yet
        self._total = 0
        self._looking: dict[QueueEntry, CapacityOffer] = {}  # called, and has not looked yet

    def __len__(self) -> int:
        return self._total

    def place(self, request_class: RequestClass, flow: str = "", cost: float = 1.0) -> QueueEntry:
        return QueueEntry(next(self._orders), request_class, flow, cost)

    async def wait(self, place: QueueEntry, limit: int, room: bool = False) -> None:
        """Return when there may be room; else as `join`."""
        turn = asyncio.get_running_loop().create_future()
        self.join(place, limit, turn, room)
        try:
            await turn
        except asyncio.CancelledError:
            self.give_up(place)
            raise
        self.look(place)

    def join(self, place: QueueEntry, limit: int, turn: Wakeup, room: bool = False) -> None:
        """Wait until `turn` is set: there may be room then, and it is to `look`; or it is to `give_up` before.

        QueueFull when `limit` requests of the class wait already. `room`: there is some already, and it is the turn of
        whoever is first.
        """
        if place.called is None and self.waiting[place.request_class] >= limit:
            raise QueueFull
        called, place.called = place.called, None
        place.turn = turn
        self._put(place, again=called is not None)
        if called is not None:
            self._pass_on(called, place)
        elif room:
            self.look_again()

    def look(self, place: QueueEntry) -> None:
        """It has been called and looks whether there is room."""
        place.turn = None
        self._looking.pop(place, None)
        self._count(place, -1)

    def give_up(self, place: QueueEntry) -> None:
        """It waits no longer."""
        if place.called is None:
            self._lines[place.request_class].drop(place)
        self.leave(place)
        self.look(place)

    def leave(self, place: QueueEntry) -> None:
        """It goes without having used what it was called for, if it was: the room is the next one's."""
        called, place.called = place.called, None
        if called is not None:
            self._refund(place)
            self._pass_on(called, place)

    def admitted(self, place: QueueEntry, now: float) -> None:
        """It has used the room that it was called for; `now` is any clock of seconds."""
        self._drains[place.request_class].left(now)
        called, place.called = place.called, None
        if called is not None and called.more:
            self._call(CapacityOffer(more=True))

    def wake(self) -> None:
        """One instance has room for one more."""
        if self._total:
            self._call(CapacityOffer(more=False))

    def look_again(self) -> None:
        """There may be room that nobody has told of: a breaker closes by time, other routers' requests end."""
        if self._looking:  # whose turn it is before that of all others: the room may be theirs
            next(iter(self._looking.values())).more = True
        elif self._total:
            self._call(CapacityOffer(more=True))

    def wake_all(self) -> None:
        """The fleet or the policy changed: everybody looks again."""
        while self._call(CapacityOffer(more=False)):
            pass

    def drain_s(self, request_class: RequestClass, now: float) -> float | None:
        """How long the class's line takes at the pace at which it has moved, in s; None when that is not known."""
        rate = self._drains[request_class].rate(now)
        return None if rate is None else (self.waiting[request_class] + 1) / rate

    # The lines

    def _put(self, place: QueueEntry, again: bool) -> None:
        line = self._lines[place.request_class]
        if again:
            self._refund(place)
        elif not self.waiting[place.request_class]:
            line.time = max(line.time, self._clock)
        line.put(place)
        self._count(place, 1)

    def _count(self, place: QueueEntry, change: int) -> None:
        self.waiting[place.request_class] += change
        self._total += change

    def _refund(self, place: QueueEntry) -> None:
        line = self._lines[place.request_class]
        line.time -= place.charge
        line.refund(place)

    def _pass_on(self, called: CapacityOffer, place: QueueEntry) -> None:
        called.asked.append(place)
        if len(called.asked) <= PASSES:
            self._call(called)

    def _call(self, offer: CapacityOffer) -> bool:
        """False when there is nobody to be called."""
        place = self._next(offer.asked)
        if place is None or place.turn is None:
            return False
        line = self._lines[place.request_class]
        self._clock = max(self._clock, line.time)
        place.charge = 1.0 / max(self.shares[place.request_class], 1e-6)
        line.time += place.charge
        line.charge(place)
        line.drop(place)
        place.called = self._looking[place] = offer
        place.turn.set_result(None)
        return True

    def _next(self, asked: list[QueueEntry]) -> QueueEntry | None:
        waiting = [name for name in CLASSES if self.waiting[name]]
        for name in sorted(waiting, key=lambda name: self._lines[name].time):
            place = self._lines[name].first(asked)
            if place is not None:
                return place
        return None
