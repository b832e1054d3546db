"""Divides the event loop's time among the KV events of all engines: engines wait for their turn, and each iteration of
the loop applies events for a slice of time, so that requests and look-ups are served in between."""

import asyncio
import time
from collections import deque
from typing import Protocol


class WaitingFeed(Protocol):
    def work(self, until: float) -> None:
        """Work until time.perf_counter reaches the given value, or until nothing is left."""


class SharedTurns:
    def __init__(self, slice_s: float = 0.002, pause_s: float = 0.006) -> None:
        """`pause_s`: pause before an engine's next turn if it has more to apply. By default one engine takes at most a
        quarter of the loop's time."""
        self.slice_s = slice_s
        self.pause_s = pause_s
        self._waiting: deque[WaitingFeed] = deque()
        self._is_coming = False  # True if the next iteration runs a slice

    def ask(self, worker: WaitingFeed) -> None:
        """Queue a worker that is not waiting yet."""
        self._waiting.append(worker)
        self._come()

    def _come(self) -> None:
        if self._waiting and not self._is_coming:
            self._is_coming = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        until = time.perf_counter() + self.slice_s
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft().work(until)
                if time.perf_counter() > until:
                    break
        finally:
            self._is_coming = False
            self._come()
