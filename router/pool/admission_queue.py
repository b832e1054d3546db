"""The queue of one pool: requests that wait for capacity, bounded per class, fair between classes and tenants.

Capacity is given by virtual time on two levels (start-time fair queueing: Goyal, Vin, Cheng, 1996). Each class has a
clock that advances by 1/share with each request admitted, and the class furthest behind is next. Within a class the
same holds for each tenant (an API key, else a client's address), by the cost of its requests in tokens. A class or
tenant without waiting requests starts at the present time: idle time earns no credit. Within a tenant: first come,
first served.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

from router.policy.types import CLASSES, RequestClass
from router.pool.drain_rate import DrainRate

PASSES = 8  # entries that are offered the same capacity, one after the other, before the offer lapses
IDLE_TENANTS = 1024  # clocks kept of tenants without a waiting request
MAX_WAIT_S = 120.0  # the drain rate predicts little beyond


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
    turn: tuple[float, float] = (0.0, 0.0)  # of its class and of its tenant, by their clocks, when it was woken


@dataclass(slots=True)
class CapacityOffer:
    """Capacity for one request."""

    more: bool  # there may be capacity for another one: the request that uses it wakes the next
    asked: list[QueueEntry] = field(default_factory=list)


class ClassQueue:
    """The waiting requests of one class."""

    __slots__ = ("_clock", "_clocks", "_costs", "_tenants", "time")

    def __init__(self) -> None:
        self.time = 0.0  # of the class: requests by share
        self._clock = 0.0  # of the tenants: tokens
        self._clocks: dict[str, float] = {}
        self._tenants: dict[str, list[tuple[int, QueueEntry]]] = {}
        self._costs: dict[str, float] = {}  # of what waits

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def put(self, entry: QueueEntry) -> None:
        waiting = self._tenants.get(entry.tenant)
        if waiting is None:
            waiting = self._tenants[entry.tenant] = []
            self._clocks[entry.tenant] = max(self._clocks.get(entry.tenant, 0.0), self._clock)
            self._costs[entry.tenant] = 0.0
        insort(waiting, (entry.order, entry))
        self._costs[entry.tenant] += entry.cost

    def drop(self, entry: QueueEntry) -> None:
        waiting = self._tenants[entry.tenant]
        waiting.remove((entry.order, entry))
        self._costs[entry.tenant] -= entry.cost
        if not waiting:
            del self._tenants[entry.tenant], self._costs[entry.tenant]
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

    def ahead(self, tenant: str) -> float:
        """Entries that come before one that this tenant adds now; of another tenant's as many as its tokens allow."""
        own = self._tenants.get(tenant, ())
        turn = self._clocks[tenant] + self._costs[tenant] if own else max(self._clocks.get(tenant, 0.0), self._clock)
        others = (name for name in self._tenants if name != tenant)
        return len(own) + sum(len(self._tenants[name]) * self._part(name, turn) for name in others)

    def _part(self, tenant: str, turn: float) -> float:
        """Of this tenant's entries, those that come before this time of the tenants' clock."""
        return min(1.0, max(0.0, (turn - self._clocks[tenant]) / max(self._costs[tenant], 1.0)))

    def charge(self, entry: QueueEntry) -> float:
        """The tenant's clock before."""
        turn = self._clocks[entry.tenant]
        self._clocks[entry.tenant] += entry.cost
        return turn

    def admitted(self, entry: QueueEntry) -> None:
        self._clock = max(self._clock, entry.turn[1])

    def refund(self, entry: QueueEntry) -> None:
        if entry.tenant in self._clocks:
            self._clocks[entry.tenant] -= entry.cost


class AdmissionQueue:
    def __init__(self) -> None:
        self._orders = count(1)
        self._queues: dict[RequestClass, ClassQueue] = {name: ClassQueue() for name in CLASSES}
        self._clock = 0.0
        self._drain = DrainRate()
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

    def admitted(self, entry: QueueEntry) -> None:
        """It uses the capacity that it was offered; the present time moves on to its turn, which it does not for one
        that was woken in vain."""
        self._clock = max(self._clock, entry.turn[0])
        self._queues[entry.request_class].admitted(entry)
        offer, entry.offer = entry.offer, None
        if offer is not None and offer.more:
            self._wake(CapacityOffer(more=True))

    def began(self, now: float) -> None:
        """A request is sent to an instance, whether it has waited or not; `now` is any clock of seconds."""
        self._drain.began(now)

    def ended(self, now: float, began: float) -> None:
        """A request that began then has ended, and its instance has capacity for another one."""
        self._drain.ended(now, began)
        self.wake()

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

    def expected_wait_s(self, entry: QueueEntry, now: float) -> float | None:
        """If it joined now, by what is ahead of it and the drain rate; None while that is unknown."""
        turn_s = self._drain.turn_s(now)
        return None if turn_s is None else min(MAX_WAIT_S, (self._ahead(entry) + 1.0) * turn_s)

    def _ahead(self, entry: QueueEntry) -> float:
        name = entry.request_class
        queue = self._queues[name]
        ahead = queue.ahead(entry.tenant)
        begins = queue.time if len(queue) else max(queue.time, self._clock)
        turn = begins + ahead / self._share(name)
        others = ((other, self._queues[other]) for other in CLASSES if other != name)
        earlier = (min(len(one), max(0.0, (turn - one.time) * self._share(other))) for other, one in others)
        return len(self._woken) + ahead + sum(earlier)

    def _share(self, request_class: RequestClass) -> float:
        return max(self.shares[request_class], 1e-6)

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
        entry.turn = queue.time, queue.charge(entry)
        entry.charge = 1.0 / self._share(entry.request_class)
        queue.time += entry.charge
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
