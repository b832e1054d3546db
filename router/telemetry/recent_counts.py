"""Counts by name in the last minute, in slots. Time is an argument."""

from collections import Counter, deque

from router.contract.redis.router_status import WINDOW_S

SLOT_S = 10.0


class RecentCounts:
    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: deque[tuple[float, Counter[str]]] = deque()  # (start, counts)

    def add(self, name: str, now: float) -> None:
        slots = self._slots
        if not slots or now - slots[-1][0] >= SLOT_S:
            slots.append((now, Counter()))
            self._forget(now)
        slots[-1][1][name] += 1

    def read(self, now: float) -> dict[str, int]:
        self._forget(now)
        return dict(sum((counts for _, counts in self._slots), Counter()))

    def _forget(self, now: float) -> None:
        while self._slots and now - self._slots[0][0] >= WINDOW_S:
            self._slots.popleft()
