"""Requests that wait in the router until an instance has room: first come, first served, bounded per class."""

import asyncio
import heapq
from collections import Counter
from itertools import count

from router.policy.types import RequestClass


class QueueFull(Exception):
    pass


class Queue:
    """The line of one pool. A request that was woken in vain keeps its place by giving its ticket again."""

    def __init__(self) -> None:
        self._tickets = count(1)
        self._line: list[tuple[int, asyncio.Future[None]]] = []
        self.waiting: Counter[RequestClass] = Counter()

    def __len__(self) -> int:
        return self.waiting.total()

    def ticket(self) -> int:
        return next(self._tickets)

    async def wait(self, request_class: RequestClass, ticket: int, limit: int) -> None:
        """Return when there may be room. QueueFull when `limit` requests of the class wait already."""
        if self.waiting[request_class] >= limit:
            raise QueueFull
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, (ticket, turn))
        self.waiting[request_class] += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.wake()  # woken and gone in the same moment: the room is the next one's
            raise
        finally:
            self.waiting[request_class] -= 1

    def wake(self) -> None:
        """One instance has room for one more."""
        while self._line:
            _, turn = heapq.heappop(self._line)
            if not turn.done():
                turn.set_result(None)
                return

    def wake_all(self) -> None:
        """The fleet or the policy changed: everybody looks again."""
        while self._line:
            self.wake()
