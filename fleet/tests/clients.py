"""Clients that send the next request as soon as the previous one is answered."""

import itertools
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import httpx

Answer = TypeVar("Answer")


class Clients(Generic[Answer]):
    """Clients that call `ask(client, text)` in a loop, each time with a different text."""

    def __init__(self, count: int, ask: Callable[[httpx.Client, str], Answer], pause_s: float = 0.0) -> None:
        self.answers: list[Answer] = []
        self._ask, self._pause_s = ask, pause_s
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(count)]

    def _work(self, number: int) -> None:
        with httpx.Client(timeout=60) as client:
            for turn in itertools.count():
                if self._stop.wait(self._pause_s):
                    return
                self.answers.append(self._ask(client, f"{number} {turn}"))

    def __enter__(self) -> "Clients[Answer]":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
