"""A fake fleet that goes on by itself, beside the web process."""

import threading
import time
from collections.abc import Iterator

import pytest

from controlplane.dashboard.tests.fake_fleet import FakeFleet
from controlplane.testing_browser import Web, browser, open_page, web  # noqa: F401


class RunningFleet:
    """Writes a second of every pool each half second until stopped; `paused` is a fleet whose workers have died."""

    def __init__(self, fleet: FakeFleet) -> None:
        self.fleet = fleet
        self.beside: list[FakeFleet] = []  # further pools
        self.paused = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.fleet.write()
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.5):
            if not self.paused:
                self.write()

    def write(self) -> None:
        for pool in [self.fleet, *self.beside]:
            pool.write(time.time())

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=10)


@pytest.fixture
def running(web: Web) -> Iterator[RunningFleet]:  # noqa: F811
    web.redis.flushall()
    fleet = RunningFleet(FakeFleet(web.redis))
    fleet.start()
    yield fleet
    fleet.stop()
