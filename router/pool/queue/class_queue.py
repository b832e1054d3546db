"""The waiting requests of one class in one band, fair between tenants by tokens.

Each tenant (an API key, else a client's address) has a clock that advances by the tokens of each of its requests that
is admitted, and the tenant furthest behind is next (start-time fair queueing: Goyal, Vin, Cheng, 1996). A tenant
without waiting requests starts at the present time: idle time earns no credit. Within a tenant: first come, first
served.
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

IDLE_TENANTS = 1024  # clocks kept of tenants without a waiting request
SPARE = 64  # outdated turns kept before they are swept
SAMPLE = 32  # turns looked at to tell what comes first; the drain rate is less exact

Turn = tuple[float, int, str]  # a tenant's clock, the order of its first request, its name


@dataclass(slots=True)
class Tenant:
    clock: float = 0.0  # tokens
    waiting: list[tuple[int, "QueueEntry"]] = field(default_factory=list)
    cost: float = 0.0  # cost of the waiting entries
    turn: tuple[float, int] | None = None  # as it was put into the heap


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One request's position. A request that was woken without finding capacity joins again with the same entry."""

    order: int
    request_class: RequestClass
    tenant: str
    cost: float  # tokens
    band: int = 0  # grows while it waits
    on_wakeup: Callable[[], None] | None = None  # while it waits
    offer: "CapacityOffer | None" = None  # from its wakeup until it has used the capacity or passed it on
    charge: float = 0.0  # to its class
    turn: tuple[float, float] = (0.0, 0.0)  # clocks of its class and of its tenant when it was woken
    lift_at: float = 0.0  # s: then its band grows
    queue: "BandQueue | None" = None  # queue that it waits in, or last waited in
    account: Tenant | None = None  # tenant that was charged
    displaced: bool = False  # displaced by a request of a higher band

    @property
    def is_waiting(self) -> bool:
        """True until it is woken."""
        return self.on_wakeup is not None and self.offer is None


@dataclass(slots=True)
class CapacityOffer:
    """Capacity for one request."""

    more: bool  # there may be capacity for another one: the request that uses it wakes the next
    asked: list[QueueEntry] = field(default_factory=list)


class ClassQueue:
    __slots__ = ("_clock", "_heap", "_size", "_tenants", "_with_requests", "arrived", "time")

    def __init__(self) -> None:
        self.time = 0.0  # clock of the class: requests by share
        self.arrived: OrderedDict[QueueEntry, None] = OrderedDict()  # in this order, with those that were woken
        self._clock = 0.0  # clock of the tenants: tokens
        self._tenants: dict[str, Tenant] = {}
        self._heap: list[Turn] = []  # with outdated ones
        self._with_requests = 0  # tenants
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, entry: QueueEntry) -> None:
        tenant = self._tenants.get(entry.tenant)
        if tenant is None:
            tenant = self._tenants[entry.tenant] = Tenant()
        self._size += 1
        self.arrived[entry] = None  # one that joins again keeps its place
        waiting, order = tenant.waiting, entry.order
        if waiting and waiting[-1][0] < order:  # nearly always the last, whose turn changes nothing
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
        """Take the entry out: it was woken, or leaves."""
        tenant = self._tenants[entry.tenant]
        waiting = tenant.waiting
        del waiting[0 if waiting[0][1] is entry else bisect_left(waiting, entry.order, key=_order)]
        self._size -= 1
        if tenant.waiting:
            tenant.cost -= entry.cost
            self._place(entry.tenant, tenant)
            return
        tenant.cost, tenant.turn = 0.0, None
        self._with_requests -= 1
        self._forget()

    def _forget(self) -> None:
        """A tenant's debt ends with the queue, and when too many idle tenants have one."""
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
        """The next entry among those not asked yet."""
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
        """The newest waiting entry that was not woken."""
        return next((entry for entry in reversed(self.arrived) if entry.is_waiting), None)

    def due(self, now: float) -> list[QueueEntry]:
        """Entries that have waited long enough for the next band."""
        found = []
        for entry in self.arrived:
            if entry.lift_at > now:
                break
            if entry.is_waiting:
                found.append(entry)
        return found

    def next_due(self) -> float:
        """s: until then `due` finds none."""
        return next((entry.lift_at for entry in self.arrived if entry.is_waiting), inf)

    def ahead(self, name: str) -> float:
        """Entries that come before one that this tenant adds now; of another tenant's as many as its tokens allow.

        A sample stands for many tenants: each request that is refused or has a deadline asks, with thousands waiting.
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
        """Charge a tenant; returns its clock before."""
        tenant = entry.account = self._tenants[entry.tenant]
        turn = tenant.clock
        tenant.clock += entry.cost
        return turn

    def admitted(self, entry: QueueEntry) -> None:
        if self._clock < entry.turn[1]:
            self._clock = entry.turn[1]

    def settle(self, entry: QueueEntry, used: float) -> None:
        """Replace the charge of a request's expected use by its real use.

        An account that was closed with the queue may be settled, too: nobody reads it any more.
        """
        tenant, entry.account = entry.account, None
        if tenant is None:
            return
        tenant.clock += used - entry.cost
        if tenant.turn is not None:
            self._place(entry.tenant, tenant)


def _order(waiting: tuple[int, QueueEntry]) -> int:
    return waiting[0]
