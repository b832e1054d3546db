"""The waiting requests of one priority band, fair between classes: each class has a clock that advances by 1/share with
each admitted request, and the class furthest behind is next."""

from collections import Counter
from collections.abc import Mapping
from operator import attrgetter

from router.policy.types import CLASSES, RequestClass
from router.pool.queue.class_queue import ClassQueue, QueueEntry

LEAST_SHARE = 1e-6
_time = attrgetter("time")


class BandQueue:
    __slots__ = ("band", "classes", "clock", "total", "waiting")

    def __init__(self, band: int) -> None:
        self.band = band
        self.clock = 0.0  # clock of the classes
        self.classes: dict[RequestClass, ClassQueue] = {name: ClassQueue() for name in CLASSES}
        self.waiting: Counter[RequestClass] = Counter()  # includes woken entries that have not resumed yet
        self.total = 0

    def count(self, entry: QueueEntry, change: int) -> None:
        self.waiting[entry.request_class] += change
        self.total += change

    def put(self, entry: QueueEntry, again: bool) -> None:
        queue = self.classes[entry.request_class]
        if again:
            self.refund(entry)
        elif not self.waiting[entry.request_class]:
            queue.time = max(queue.time, self.clock)
        entry.queue = self
        queue.put(entry)
        self.count(entry, 1)

    def take(self, entry: QueueEntry, shares: Mapping[RequestClass, float]) -> None:
        """Wake the entry and charge its class and tenant."""
        queue = self.classes[entry.request_class]
        entry.turn = queue.time, queue.charge(entry)
        entry.charge = 1.0 / max(shares[entry.request_class], LEAST_SHARE)
        queue.time += entry.charge
        queue.drop(entry)

    def admitted(self, entry: QueueEntry) -> None:
        """Advance the clock to the turn of an admitted entry; an entry that was woken but not admitted does not advance
        it."""
        if self.clock < entry.turn[0]:
            self.clock = entry.turn[0]
        self.classes[entry.request_class].admitted(entry)
        self.over(entry)

    def refund(self, entry: QueueEntry) -> None:
        queue = self.classes[entry.request_class]
        queue.time -= entry.charge
        queue.settle(entry, 0.0)

    def over(self, entry: QueueEntry) -> None:
        """Remove an entry that no longer waits here."""
        self.classes[entry.request_class].arrived.pop(entry, None)

    def first(self, asked: list[QueueEntry]) -> QueueEntry | None:
        waiting = [self.classes[name] for name in CLASSES if self.waiting[name]]
        if len(waiting) > 1:
            waiting.sort(key=_time)
        for queue in waiting:
            entry = queue.first(asked)
            if entry is not None:
                return entry
        return None

    def ahead(self, request_class: RequestClass, tenant: str, shares: Mapping[RequestClass, float]) -> float:
        """Count the entries ahead of one that this tenant would add now."""
        queue = self.classes[request_class]
        ahead = queue.ahead(tenant)
        begins = queue.time if len(queue) else max(queue.time, self.clock)
        turn = begins + ahead / max(shares[request_class], LEAST_SHARE)
        others = ((shares[other], self.classes[other]) for other in CLASSES if other != request_class)
        return ahead + sum(min(len(one), max(0.0, (turn - one.time) * share)) for share, one in others)

    def __len__(self) -> int:
        """Count the waiting entries, excluding woken ones."""
        return sum(map(len, self.classes.values()))
