"""The queue of one pool: requests that wait for capacity, bounded per class. Priority bands are served strictly in
order; within a band, capacity is shared fairly between classes (router/pool/queue/band_queue.py) and tenants
(router/pool/queue/class_queue.py).
A request's band rises by one with every `band_max_wait_s` of waiting, so that the lowest is served eventually. Pure:
time is an argument.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import inf

from router.policy.types import CLASSES, ParsedPolicy, RequestClass
from router.pool.load.output_guess import OutputGuess
from router.pool.queue.band_queue import BandQueue
from router.pool.queue.class_queue import CapacityOffer, QueueEntry
from router.pool.queue.drain_rate import DrainRate

PASSES = 8  # entries to which an offer of capacity is passed on before it lapses
MAX_WAIT_S = 120.0  # limit of predicted waits; longer predictions by the drain rate mean little


class QueueFull(Exception):
    pass


class AdmissionQueue:
    def __init__(self) -> None:
        self._orders = count(1)
        self._bands: dict[int, BandQueue] = {}
        self._highest_first: list[BandQueue] = []
        self.drain = DrainRate()
        self._now = 0.0  # s, time of the latest call
        self._due_at = inf  # s, earliest time at which the band of any request may rise
        self.outputs = OutputGuess()
        self.shares: Mapping[RequestClass, float] = dict.fromkeys(CLASSES, 1.0)
        self.band_max_wait_s = 60.0
        self.waiting: Counter[RequestClass] = Counter()  # includes woken entries that have not resumed yet
        self.displaced: Counter[int] = Counter()  # by band, since the start
        self.total = 0  # waiting requests
        self._woken: dict[QueueEntry, CapacityOffer] = {}  # woken entries that have not resumed

    def __len__(self) -> int:
        return self.total

    def follow(self, policy: ParsedPolicy) -> None:
        self.shares = {name: policy[f"admission.share_{name}"] for name in CLASSES}
        self.band_max_wait_s = policy["admission.band_max_wait_s"]

    def waiting_by_band(self) -> dict[int, int]:
        return {queue.band: queue.total for queue in self._highest_first if queue.total}

    def entry(self, request_class: RequestClass, tenant: str = "", cost: float = 1.0, band: int = 0) -> QueueEntry:
        return QueueEntry(next(self._orders), request_class, tenant, cost, band)

    def comes_first(self, band: int, now: float) -> bool:
        """Return whether a request of this band would be first if it arrived now."""
        if not self.total:
            return True
        self._now = max(self._now, now)
        if not self._waits_from(band):
            self._lift()
        return not self._waits_from(band)

    def _waits_from(self, band: int) -> bool:
        return any(queue.total for queue in self._highest_first if queue.band >= band)

    def join(
        self, entry: QueueEntry, limit: int, on_wakeup: Callable[[], None], capacity: bool = False, now: float = 0.0
    ) -> None:
        """Add an entry. `on_wakeup` is called once, perhaps before this returns; then call `resume`.
        Raise QueueFull if `limit` requests of the class wait and none of them can be displaced. `capacity` is True if
        there is capacity now for the first in the queue.
        """
        if self._now < now:
            self._now = now
        if entry.offer is None:
            if self.waiting[entry.request_class] >= limit and not (
                limit and self._displace(entry, (entry.request_class,))
            ):
                raise QueueFull
            entry.lift_at = self._now + self.band_max_wait_s
        if entry.lift_at < self._due_at:
            self._due_at = entry.lift_at
        offer, entry.offer = entry.offer, None
        entry.on_wakeup = on_wakeup
        queue = entry.queue if offer is not None and entry.queue is not None else self._band(entry.band)
        queue.put(entry, again=offer is not None)
        self._count(entry, 1)
        if offer is not None:
            self._pass_on(offer, entry)
        elif capacity:
            self.look_again()

    def resume(self, entry: QueueEntry) -> None:
        """Let a woken entry look for capacity; then call `admitted`, `leave`, or `join` again."""
        entry.on_wakeup = None
        self._woken.pop(entry, None)
        if not entry.displaced and entry.queue is not None:
            entry.queue.count(entry, -1)
            self._count(entry, -1)

    def give_up(self, entry: QueueEntry) -> None:
        """Remove the entry, woken or not."""
        if entry.offer is None and not entry.displaced and entry.queue is not None:
            entry.queue.classes[entry.request_class].drop(entry)
        self.leave(entry)
        self.resume(entry)

    def leave(self, entry: QueueEntry) -> None:
        """Pass the unused offer of capacity on to the next entry."""
        offer, entry.offer = entry.offer, None
        if entry.queue is not None:
            entry.queue.over(entry)
            if offer is not None:
                entry.queue.refund(entry)
                self._pass_on(offer, entry)

    def admitted(self, entry: QueueEntry) -> None:
        """Note that the entry uses its offer of capacity."""
        if entry.queue is not None:
            entry.queue.admitted(entry)
        offer, entry.offer = entry.offer, None
        if offer is not None and offer.more:
            self._wake(CapacityOffer(more=True))

    def settle(self, entry: QueueEntry, used: float) -> None:
        """Charge an admitted request that has ended for the tokens it used."""
        if entry.queue is not None:
            entry.queue.classes[entry.request_class].settle(entry, used)

    def began(self, now: float) -> None:
        """Note that a request is sent to an instance; `now` is any clock of seconds."""
        self.drain.began(now)

    def ended(self, now: float, began: float) -> None:
        """Note the end of a request that began at `began`, and wake the next one."""
        self._now = max(self._now, now)
        self.drain.ended(now, began)
        if self.total:
            self.wake()

    def wake(self) -> None:
        """Offer capacity for one more request."""
        if self.total:
            self._wake(CapacityOffer(more=False))

    def look_again(self) -> None:
        """Check for capacity that becomes free without notice: breakers close by time, other routers' requests end."""
        if self._woken:  # woken entries come first, and the capacity may be for them
            next(iter(self._woken.values())).more = True
        elif self.total:
            self._wake(CapacityOffer(more=True))

    def wake_all(self) -> None:
        """Wake all entries, because the fleet or the policy has changed."""
        while self._wake(CapacityOffer(more=False)):
            pass

    def expected_wait_s(self, entry: QueueEntry, now: float) -> float | None:
        """Predict the wait of a request that joins now from the requests ahead and the drain rate; None if unknown."""
        turn_s = self.drain.turn_s(now)
        return None if turn_s is None else min(MAX_WAIT_S, (self._ahead(entry) + 1.0) * turn_s)

    def _ahead(self, entry: QueueEntry) -> float:
        above = sum(len(queue) for queue in self._highest_first if queue.band > entry.band)
        own = self._bands.get(entry.band)
        ahead = own.ahead(entry.request_class, entry.tenant, self.shares) if own is not None else 0.0
        return len(self._woken) + above + ahead

    def _band(self, band: int) -> BandQueue:
        queue = self._bands.get(band)
        if queue is None:
            queue = self._bands[band] = BandQueue(band)
            insort(self._highest_first, queue, key=lambda one: -one.band)
        return queue

    def _count(self, entry: QueueEntry, change: int) -> None:
        self.waiting[entry.request_class] += change
        self.total += change

    def makes_room(self, entry: QueueEntry) -> bool:
        """Displace a request of any class in favour of this one, as `join` does within the class. Return False if no
        request may be displaced."""
        return self._displace(entry, CLASSES)

    def _displace(self, entry: QueueEntry, names: Sequence[RequestClass]) -> bool:
        """Remove the newest request of the class in the lowest band below this one. If there is none, remove the newest
        request, in this band, of the tenant with the most waiting requests, so that no tenant can shut the others out.
        """
        self._lift()
        for queue in reversed(self._highest_first):
            if queue.band > entry.band:
                return False
            for waiting in (queue.classes[name] for name in names):
                newest = waiting.newest() if queue.band < entry.band else waiting.newest_beyond(entry.tenant)
                if newest is not None and newest.on_wakeup is not None:
                    self._remove(newest, queue, newest.on_wakeup)
                    return True
        return False

    def _remove(self, entry: QueueEntry, queue: BandQueue, on_wakeup: Callable[[], None]) -> None:
        """Remove a waiting entry from its queue because another request takes its place."""
        queue.classes[entry.request_class].drop(entry)
        queue.over(entry)
        queue.count(entry, -1)
        self._count(entry, -1)
        entry.displaced = True
        self.displaced[entry.band] += 1
        on_wakeup()

    def _lift(self) -> None:
        """Raise entries that have waited long enough to the next band."""
        if self._now < self._due_at:
            return
        for queue in tuple(self._highest_first):
            for one in queue.classes.values() if queue.total else ():
                for entry in one.due(self._now):
                    one.drop(entry)
                    queue.over(entry)
                    queue.count(entry, -1)
                    bands = 1 + int((self._now - entry.lift_at) / self.band_max_wait_s)
                    entry.band += bands
                    entry.lift_at += bands * self.band_max_wait_s
                    self._band(entry.band).put(entry, again=False)
        waiting = (one.next_due() for queue in self._highest_first for one in queue.classes.values())
        self._due_at = min(waiting, default=inf)

    def _pass_on(self, offer: CapacityOffer, entry: QueueEntry) -> None:
        offer.asked.append(entry)
        if len(offer.asked) <= PASSES:
            self._wake(offer)

    def _wake(self, offer: CapacityOffer) -> bool:
        """Wake the next entry; return False if there is none."""
        entry = self._next(offer.asked)
        if entry is None or entry.on_wakeup is None or entry.queue is None:
            return False
        entry.queue.take(entry, self.shares)
        entry.offer = self._woken[entry] = offer
        entry.on_wakeup()
        return True

    def _next(self, asked: list[QueueEntry]) -> QueueEntry | None:
        if len(self._highest_first) > 1:
            self._lift()
        for queue in self._highest_first:
            if queue.total and (entry := queue.first(asked)) is not None:
                return entry
        return None
