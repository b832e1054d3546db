"""A fake fleet that runs by itself beside the web process."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.live.dashboard.step import step
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.testing_browser import Web, browser, open_page, web  # noqa: F401
from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import DeliveryLine, DeliveryLines

LAYOUT_SHIFT = """() => {
  globalThis.shift = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) globalThis.shift += entry.value;
  }).observe({type: "layout-shift"});
}"""


class RunningFleet:
    """Writes a second of every pool, and its frame as the control worker does, every half second until stopped.
    `paused` simulates dead workers, `controlled` a control worker that is alive."""

    def __init__(self, fleet: FakeFleet) -> None:
        self.fleet = fleet
        self.beside: list[FakeFleet] = []  # further pools
        self.paused = False
        self.controlled = True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.write()
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.5):
            if not self.paused:
                self.write()

    def write(self) -> None:
        for pool in [self.fleet, *self.beside]:
            pool.write(time.time())
        if self.controlled:
            step(self.fleet.client, time.time(), "worker")

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


def write_delivery(running: RunningFleet, **more: Any) -> None:
    now = time.time()
    line: dict[str, Any] = {
        "delivery": 3, "policy": "default", "pools": ("demo",), "base": "v3", "candidate": "v4", "state": "step",
        "word": "running", "step": "canary 25 %", "figure": "heavy 1.04× (0.97–1.12×)", "next_at": now + 250,
        "since": now,
    }  # fmt: skip
    value = DeliveryLines(at=now + 120, lines=(DeliveryLine(**{**line, **more}),))
    running.fleet.client.set(redis_keys.DELIVERIES, codec.encode(value))
