"""Divides the event loop's time among the KV events of all engines: whoever has some to apply waits for its turn, and
one iteration of the loop applies events for a slice of time, so that requests and look-ups are served between."""

import asyncio
import time
from collections import deque
from typing import Protocol


class Worker(Protocol):
    def work(self, until: float) -> None:
        """Until then, by time.perf_counter, or until nothing is left."""


class Turns:
    def __init__(self, slice_s: float = 0.002, pause_s: float = 0.006) -> None:
        """`pause_s`: before the next turn of an engine that has more to apply. By default one engine takes a quarter of
        the loop's time at most."""
        self.slice_s = slice_s
        self.pause_s = pause_s
        self._waiting: deque[Worker] = deque()
        self._is_coming = False  # a slice, with the next iteration

    def ask(self, worker: Worker) -> None:
        """The worker, which is not waiting yet, gets a turn."""
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
