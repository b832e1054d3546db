"""Deadlines that share one timer; separate timers would cost every request two."""

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

GRAIN_S = 0.05  # between two checks
PASSES = 8  # loop passes before a late check counts: a connection needs fewer from its SYN to its first bytes

Item = TypeVar("Item")


class Deadlines(Generic[Item]):
    """Calls `expire` with each item whose deadline has passed, up to GRAIN_S late. A busy loop runs its timers before
    it reads its sockets, where data that arrived in time may be waiting. A late check therefore first waits for some
    iterations of the loop, so that the process's own work does not count as silence of a peer.
    """

    __slots__ = ("_due", "_expire", "_loop", "_next", "_passes", "_timer", "drop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None, expire: Callable[[Item], None]) -> None:
        """`loop` is None for the loop that runs at the first start."""
        self._loop = loop
        self._expire = expire
        self._due: dict[Item, float] = {}  # s, loop time
        self.drop = self._due.pop  # `drop(item, None)` does the same as `stop`, without a call into Python
        self._timer: asyncio.Handle | None = None
        self._next = 0.0  # time when the timer fires
        self._passes = 0  # iterations that a late check still waits for

    def __len__(self) -> int:
        return len(self._due)

    def items(self) -> Iterator[Item]:
        """Return the items in the order of their start."""
        return iter(self._due)

    def due(self, item: Item) -> float:
        """Return the item's deadline, in loop time; infinite without one."""
        return self._due.get(item, math.inf)

    def start(self, item: Item, limit_s: float) -> None:
        due = self._due[item] = (self._loop or self._running_loop()).time() + limit_s
        if self._timer is None or due < self._next:
            self._arm(due)

    def stop(self, item: Item) -> None:
        self._due.pop(item, None)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop; cached because asking for it costs a system call (getpid) before Python 3.12."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = at
        self._timer = self._running_loop().call_at(at, self._check)

    def _check(self) -> None:
        now = self._running_loop().time()
        if now - self._next > GRAIN_S:
            self._passes = PASSES
            self._wait_for_passes(now)
        else:
            self._expire_due(now)

    def _wait_for_passes(self, at: float) -> None:
        self._passes -= 1
        if self._passes:
            self._timer = self._running_loop().call_soon(self._wait_for_passes, at)
        else:
            self._expire_due(at)

    def _expire_due(self, at: float) -> None:
        self._timer = None
        for item in [item for item, due in self._due.items() if due <= at]:
            if self._due.pop(item, None) is not None:  # an earlier item may have stopped it
                self._expire(item)
        self._arm_if_needed()

    def _arm_if_needed(self) -> None:
        """Arm the timer, unless a newer deadline has already armed it."""
        if self._due and self._timer is None:
            self._arm(max(min(self._due.values()), self._running_loop().time() + GRAIN_S))
