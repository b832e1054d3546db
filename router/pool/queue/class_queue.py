"""The waiting requests of one class in one band, fair between tenants by tokens.
Each tenant (an API key, or else a client's address) has a clock that advances by the tokens of each of its admitted
requests, and the tenant furthest behind is next (start-time fair queueing: Goyal, Vin, Cheng, 1996). A tenant without
waiting requests starts at the current clock, so idle time earns no credit. Within a tenant, requests are served in
order of arrival.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from router.policy.types import RequestClass

if TYPE_CHECKING:
    from router.pool.queue.band_queue import BandQueue

IDLE_TENANTS = 1024  # clocks kept for tenants without waiting requests
SPARE = 64  # outdated turns kept before they are swept
SAMPLE = 32  # turns examined to order tenants; a larger sample gains nothing, because the drain rate is less exact

Turn = tuple[float, int, str]  # (tenant's clock, order of its first request, name)


@dataclass(slots=True)
class Tenant:
    clock: float = 0.0  # tokens
    waiting: list[tuple[int, "QueueEntry"]] = field(default_factory=list)
    cost: float = 0.0  # cost of the waiting entries
    turn: tuple[float, int] | None = None  # the tenant's latest turn in the heap


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One request's position. A request that was woken without finding capacity joins again with the same entry."""

    order: int
    request_class: RequestClass
    tenant: str
    cost: float  # tokens
    band: int = 0  # rises while the request waits
    on_wakeup: Callable[[], None] | None = None  # set while the request waits
    offer: "CapacityOffer | None" = None  # set from the wakeup until the capacity is used or passed on
    charge: float = 0.0  # amount charged to its class
    turn: tuple[float, float] = (0.0, 0.0)  # clocks of its class and of its tenant when it was woken
    lift_at: float = 0.0  # s, time at which its band will rise
    queue: "BandQueue | None" = None  # current or latest queue
    account: Tenant | None = None  # charged tenant
    displaced: bool = False  # True if another request has taken its place

    @property
    def is_waiting(self) -> bool:
        """Return True until the entry is woken."""
        return self.on_wakeup is not None and self.offer is None


@dataclass(slots=True)
class CapacityOffer:
    """Capacity for one request."""

    more: bool  # True if the request that uses this capacity should wake the next
    asked: list[QueueEntry] = field(default_factory=list)


class ClassQueue:
    __slots__ = ("_by_number", "_clock", "_heap", "_most", "_size", "_tenants", "_with_requests", "arrived", "time")

    def __init__(self) -> None:
        self.time = 0.0  # clock of the class: requests by share
        self.arrived: OrderedDict[QueueEntry, None] = OrderedDict()  # entries in order of arrival, including woken ones
        self._clock = 0.0  # clock of the tenants: tokens
        self._tenants: dict[str, Tenant] = {}
        self._heap: list[Turn] = []  # includes outdated turns
        self._with_requests = 0  # number of tenants with requests
        self._by_number: dict[int, dict[str, None]] = {}  # names of tenants by their number of waiting entries
        self._most = 0  # largest number of waiting entries of one tenant
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, entry: QueueEntry) -> None:
        tenant = self._tenants.get(entry.tenant)
        if tenant is None:
            tenant = self._tenants[entry.tenant] = Tenant()
        self._size += 1
        self.arrived[entry] = None  # an entry that joins again keeps its place
        waiting, order = tenant.waiting, entry.order
        self._count(entry.tenant, len(waiting), len(waiting) + 1)
        if waiting and waiting[-1][0] < order:  # nearly always true, because a later entry changes no turn
            waiting.append((order, entry))
            tenant.cost += entry.cost
            return
        if not waiting:
            self._with_requests += 1
            if tenant.clock < self._clock:
                tenant.clock = self._clock
        insort(waiting, (order, entry))
        tenant.cost += entry.cost
        self._place(entry.tenant, tenant)

    def drop(self, entry: QueueEntry) -> None:
        """Remove an entry that was woken or leaves."""
        tenant = self._tenants[entry.tenant]
        waiting = tenant.waiting
        del waiting[0 if waiting[0][1] is entry else bisect_left(waiting, entry.order, key=_order)]
        self._size -= 1
        self._count(entry.tenant, len(waiting) + 1, len(waiting))
        if tenant.waiting:
            tenant.cost -= entry.cost
            self._place(entry.tenant, tenant)
            return
        tenant.cost, tenant.turn = 0.0, None
        self._with_requests -= 1
        self._forget()

    def _count(self, name: str, before: int, now: int) -> None:
        """Record how many entries of the tenant wait; a scan of all tenants for each refused request would take too
        long."""
        if before:
            alike = self._by_number[before]
            del alike[name]
            if not alike:
                del self._by_number[before]
        if now:
            self._by_number.setdefault(now, {})[name] = None
        if now > self._most or (before == self._most and before not in self._by_number):
            self._most = now

    def _forget(self) -> None:
        """Forget tenants' debts when the queue is empty, or when too many idle tenants have debts."""
        if not self._with_requests:
            self._tenants.clear()
            self._heap.clear()
        elif len(self._tenants) - self._with_requests > IDLE_TENANTS:
            self._tenants = {name: tenant for name, tenant in self._tenants.items() if tenant.waiting}

    def _place(self, name: str, tenant: Tenant) -> None:
        """Put the tenant's turn into the heap; its earlier turns there are outdated."""
        turn = tenant.clock, tenant.waiting[0][0]
        if turn == tenant.turn:
            return
        tenant.turn = turn
        heappush(self._heap, (*turn, name))
        if len(self._heap) > 2 * self._with_requests + SPARE:
            self._heap = [(*one.turn, name) for name, one in self._tenants.items() if one.turn is not None]
            heapify(self._heap)

    def first(self, asked: list[QueueEntry]) -> QueueEntry | None:
        """Return the next entry that has not been offered capacity yet."""
        passed, found = [], None
        while self._heap and found is None:
            clock, order, name = self._heap[0]
            tenant = self._tenants.get(name)
            if tenant is None or tenant.turn != (clock, order):
                heappop(self._heap)
                continue
            if not asked:
                return tenant.waiting[0][1]
            found = next((entry for _, entry in tenant.waiting if entry not in asked), None)
            if found is None:
                passed.append(heappop(self._heap))
        for turn in passed:
            heappush(self._heap, turn)
        return found

    def newest(self) -> QueueEntry | None:
        """Return the newest waiting entry that has not been woken."""
        return next((entry for entry in reversed(self.arrived) if entry.is_waiting), None)

    def newest_beyond(self, name: str) -> QueueEntry | None:
        """Return the newest entry of the tenant with the most waiting, if it has at least two more than this tenant."""
        own = self._tenants.get(name)
        if self._most <= (len(own.waiting) if own is not None else 0) + 1:
            return None
        most = next(reversed(self._by_number[self._most]))
        return self._tenants[most].waiting[-1][1]

    def due(self, now: float) -> list[QueueEntry]:
        """Return the entries that have waited long enough to rise to the next band."""
        found = []
        for entry in self.arrived:
            if entry.lift_at > now:
                break
            if entry.is_waiting:
                found.append(entry)
        return found

    def next_due(self) -> float:
        """Return the earliest time (s) at which `due` returns an entry."""
        return next((entry.lift_at for entry in self.arrived if entry.is_waiting), inf)

    def ahead(self, name: str) -> float:
        """Count the entries ahead of one that this tenant would add now; entries of other tenants count as far as their
        tokens allow. With many tenants a sample is enough: this runs for each request that is refused or has a
        deadline, while thousands wait.
        """
        own = self._tenants.get(name)
        turn = max(own.clock, self._clock) + own.cost if own is not None else self._clock
        before, looked_at = 0.0, 0
        for clock, order, other in self._heap[:: 1 + len(self._heap) // SAMPLE]:
            one = self._tenants.get(other)
            if one is not None and one is not own and one.turn == (clock, order):
                before += len(one.waiting) * min(1.0, max(0.0, (turn - clock) / max(one.cost, 1.0)))
                looked_at += 1
        mine = len(own.waiting) if own is not None else 0
        others = self._with_requests - bool(mine)
        return mine + min(self._size - mine, before * others / max(1, looked_at))

    def charge(self, entry: QueueEntry) -> float:
        """Charge a tenant; return its previous clock."""
        tenant = entry.account = self._tenants[entry.tenant]
        turn = tenant.clock
        tenant.clock += entry.cost
        return turn

    def admitted(self, entry: QueueEntry) -> None:
        if self._clock < entry.turn[1]:
            self._clock = entry.turn[1]

    def settle(self, entry: QueueEntry, used: float) -> None:
        """Replace the charge of a request's expected use by its actual use. It is harmless to settle an account that
        was closed with the queue.
        """
        tenant, entry.account = entry.account, None
        if tenant is None:
            return
        tenant.clock += used - entry.cost
        if tenant.turn is not None:
            self._place(entry.tenant, tenant)


def _order(waiting: tuple[int, QueueEntry]) -> int:
    return waiting[0]
