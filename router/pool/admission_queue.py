"""The queue of one pool: requests that wait for capacity, bounded per class, fair between classes and tenants.

Capacity is given by virtual time on two levels (start-time fair queueing: Goyal, Vin, Cheng, 1996). Each class has a
clock that advances by 1/share with each request admitted, and the class furthest behind is next. Within a class the
same holds for each tenant (an API key, else a client's address), by the cost of its requests in tokens. A class or
tenant without waiting requests starts at the present time: idle time earns no credit. Within a tenant: first come,
first served.
"""

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

from router.policy.types import CLASSES, RequestClass

PASSES = 8  # entries that are offered the same capacity, one after the other, before the offer lapses
IDLE_TENANTS = 1024  # clocks kept of tenants without a waiting request


MEMORY_S = 10.0  # time constant of forgetting
ENOUGH = 3.0  # departures remembered before there is a rate


class QueueFull(Exception):
    pass


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One request's position. A request that was woken without finding capacity joins again with the same entry."""

    order: int
    request_class: RequestClass
    tenant: str
    cost: float  # tokens
    on_wakeup: Callable[[], None] | None = None  # while it waits
    offer: "CapacityOffer | None" = None  # from its wakeup until it has used the capacity or passed it on
    charge: float = 0.0  # what its class was charged


@dataclass(slots=True)
class CapacityOffer:
    """Capacity for one request."""

    more: bool  # there may be capacity for another one: the request that uses it wakes the next
    asked: list[QueueEntry] = field(default_factory=list)


class ClassQueue:
    """The waiting requests of one class."""

    __slots__ = ("_clock", "_clocks", "_tenants", "time")

    def __init__(self) -> None:
        self.time = 0.0  # of the class: requests by share
        self._clock = 0.0  # of the tenants: tokens
        self._clocks: dict[str, float] = {}
        self._tenants: dict[str, list[tuple[int, QueueEntry]]] = {}

    def put(self, entry: QueueEntry) -> None:
        waiting = self._tenants.get(entry.tenant)
        if waiting is None:
            waiting = self._tenants[entry.tenant] = []
            self._clocks[entry.tenant] = max(self._clocks.get(entry.tenant, 0.0), self._clock)
        insort(waiting, (entry.order, entry))

    def drop(self, entry: QueueEntry) -> None:
        waiting = self._tenants[entry.tenant]
        waiting.remove((entry.order, entry))
        if not waiting:
            del self._tenants[entry.tenant]
            self._forget()

    def _forget(self) -> None:
        """A tenant's debt ends with the queue, and when too many idle tenants have one."""
        if not self._tenants:
            self._clocks.clear()
        elif len(self._clocks) - len(self._tenants) > IDLE_TENANTS:
            self._clocks = {tenant: self._clocks[tenant] for tenant in self._tenants}

    def first(self, asked: list[QueueEntry]) -> QueueEntry | None:
        """The next entry among those not asked yet."""
        for tenant in sorted(self._tenants, key=lambda name: (self._clocks[name], self._tenants[name][0][0])):
            for _, entry in self._tenants[tenant]:
                if entry not in asked:
                    return entry
        return None

    def charge(self, entry: QueueEntry) -> None:
        self._clock = max(self._clock, self._clocks[entry.tenant])
        self._clocks[entry.tenant] += entry.cost

    def refund(self, entry: QueueEntry) -> None:
        if entry.tenant in self._clocks:
            self._clocks[entry.tenant] -= entry.cost


class DepartureRate:
    """Rate of departures from the queue, for `Retry-After` and deadlines: counted with exponential forgetting."""

    __slots__ = ("_at", "_began", "_count")

    def __init__(self) -> None:
        self._count = 0.0
        self._at = 0.0
        self._began: float | None = None  # the first departure; a younger memory covers less time

    def left(self, now: float) -> None:
        if self._began is None or self._faded(now) < 0.01:
            self._began, self._count = now, 0.0
        self._count = self._faded(now) + 1.0
        self._at = now

    def rate(self, now: float) -> float | None:
        """Departures per second; None while too few are remembered."""
        count = self._faded(now)
        if self._began is None or count < ENOUGH:
            return None
        seen_s = MEMORY_S * (1.0 - math.exp(-(now - self._began) / MEMORY_S))
        return count / max(seen_s, 0.001)

    def _faded(self, now: float) -> float:
        return self._count * math.exp(-(now - self._at) / MEMORY_S)


class AdmissionQueue:
    def __init__(self) -> None:
        self._orders = count(1)
        self._queues: dict[RequestClass, ClassQueue] = {name: ClassQueue() for name in CLASSES}
        self._clock = 0.0
        self._departures = {name: DepartureRate() for name in CLASSES}
        self.shares: Mapping[RequestClass, float] = dict.fromkeys(CLASSES, 1.0)
        self.waiting: Counter[RequestClass] = Counter()  # includes those that were woken and have not resumed yet
        self._total = 0
        self._woken: dict[QueueEntry, CapacityOffer] = {}  # and not resumed yet

    def __len__(self) -> int:
        return self._total

    def entry(self, request_class: RequestClass, tenant: str = "", cost: float = 1.0) -> QueueEntry:
        return QueueEntry(next(self._orders), request_class, tenant, cost)

    def join(self, entry: QueueEntry, limit: int, on_wakeup: Callable[[], None], capacity: bool = False) -> None:
        """Wait. `on_wakeup` is called once, maybe before this returns, when there may be capacity: `resume` then.

        Raises QueueFull when `limit` requests of the class wait already. `capacity`: there is some now, for the first
        in the queue.
        """
        if entry.offer is None and self.waiting[entry.request_class] >= limit:
            raise QueueFull
        offer, entry.offer = entry.offer, None
        entry.on_wakeup = on_wakeup
        self._put(entry, again=offer is not None)
        if offer is not None:
            self._pass_on(offer, entry)
        elif capacity:
            self.look_again()

    def resume(self, entry: QueueEntry) -> None:
        """It was woken and looks for capacity now; then `admitted`, `leave`, or `join` again."""
        entry.on_wakeup = None
        self._woken.pop(entry, None)
        self._count(entry, -1)

    def give_up(self, entry: QueueEntry) -> None:
        """It stops waiting, woken or not."""
        if entry.offer is None:
            self._queues[entry.request_class].drop(entry)
        self.leave(entry)
        self.resume(entry)

    def leave(self, entry: QueueEntry) -> None:
        """Pass capacity that it was offered and did not use on to the next."""
        offer, entry.offer = entry.offer, None
        if offer is not None:
            self._refund(entry)
            self._pass_on(offer, entry)

    def admitted(self, entry: QueueEntry, now: float) -> None:
        """It uses the capacity that it was offered; `now` is any clock of seconds."""
        self._departures[entry.request_class].left(now)
        offer, entry.offer = entry.offer, None
        if offer is not None and offer.more:
            self._wake(CapacityOffer(more=True))

    def wake(self) -> None:
        """One instance has capacity for one more request."""
        if self._total:
            self._wake(CapacityOffer(more=False))

    def look_again(self) -> None:
        """There may be capacity that was not announced: breakers close by time, other routers' requests end."""
        if self._woken:  # they come before all others, and the capacity may be theirs
            next(iter(self._woken.values())).more = True
        elif self._total:
            self._wake(CapacityOffer(more=True))

    def wake_all(self) -> None:
        """The fleet or the policy changed."""
        while self._wake(CapacityOffer(more=False)):
            pass

    def expected_wait_s(self, request_class: RequestClass, now: float) -> float | None:
        """For a request that joins now, by the rate of departures; None while that is unknown."""
        rate = self._departures[request_class].rate(now)
        return None if rate is None else (self.waiting[request_class] + 1) / rate

    def _put(self, entry: QueueEntry, again: bool) -> None:
        queue = self._queues[entry.request_class]
        if again:
            self._refund(entry)
        elif not self.waiting[entry.request_class]:
            queue.time = max(queue.time, self._clock)
        queue.put(entry)
        self._count(entry, 1)

    def _count(self, entry: QueueEntry, change: int) -> None:
        self.waiting[entry.request_class] += change
        self._total += change

    def _refund(self, entry: QueueEntry) -> None:
        queue = self._queues[entry.request_class]
        queue.time -= entry.charge
        queue.refund(entry)

    def _pass_on(self, offer: CapacityOffer, entry: QueueEntry) -> None:
        offer.asked.append(entry)
        if len(offer.asked) <= PASSES:
            self._wake(offer)

    def _wake(self, offer: CapacityOffer) -> bool:
        """False when there is no entry left to wake."""
        entry = self._next(offer.asked)
        if entry is None or entry.on_wakeup is None:
            return False
        queue = self._queues[entry.request_class]
        self._clock = max(self._clock, queue.time)
        entry.charge = 1.0 / max(self.shares[entry.request_class], 1e-6)
        queue.time += entry.charge
        queue.charge(entry)
        queue.drop(entry)
        entry.offer = self._woken[entry] = offer
        entry.on_wakeup()
        return True

    def _next(self, asked: list[QueueEntry]) -> QueueEntry | None:
        waiting = [name for name in CLASSES if self.waiting[name]]
        for name in sorted(waiting, key=lambda name: self._queues[name].time):
            entry = self._queues[name].first(asked)
            if entry is not None:
                return entry
        return None
