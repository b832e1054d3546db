"""Deadlines that share one timer; separate timers would cost each request two."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

GRAIN_S = 0.05  # between two checks

Item = TypeVar("Item")


class Deadlines(Generic[Item]):
    """Calls `expire` with each item whose deadline passed, up to GRAIN_S late."""

    __slots__ = ("_due", "_expire", "_loop", "_next", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[Item], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._due: dict[Item, float] = {}  # s, loop time
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0  # time when the timer fires

    def __len__(self) -> int:
        return len(self._due)

    def items(self) -> Iterator[Item]:
        """Those that were started first come first."""
        return iter(self._due)

    def start(self, item: Item, limit_s: float) -> None:
        due = self._due[item] = self._loop.time() + limit_s
        if self._timer is None or due < self._next:
            self._arm(due)

    def stop(self, item: Item) -> None:
        self._due.pop(item, None)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = at
        self._timer = self._loop.call_at(at, self._check)

    def _check(self) -> None:
        now = self._loop.time()
        self._timer = None
        for item in [item for item, due in self._due.items() if due <= now]:
            del self._due[item]
            self._expire(item)
        if self._due and self._timer is None:
            self._arm(max(min(self._due.values()), now + GRAIN_S))
