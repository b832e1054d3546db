"""Clients that send the next request as soon as the previous one is answered."""

import itertools
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import httpx

Answer = TypeVar("Answer")


class Clients(Generic[Answer]):
    """Clients of `ask`, which takes a client and a text that no other request has."""

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
