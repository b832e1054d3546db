"""The loop that scrapes a node's engines, while Redis or the database is unreachable."""

import threading
from collections.abc import Callable

import pytest
import redis

from controlplane.base import worker
from fleet import tasks


def failing(times: int, stopping: threading.Event) -> Callable[[str], None]:
    """A scrape that fails this many times, then works and ends the loop."""
    calls: list[str] = []

    def scrape(node: str) -> None:
        calls.append(node)
        if len(calls) <= times:
            raise redis.ConnectionError("Redis is away")
        stopping.set()

    return scrape


def test_a_node_whose_redis_is_unreachable_continues_and_logs_that_once(
    db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "controlplane.base.worker")
    stopping = threading.Event()
    monkeypatch.setattr(stopping, "wait", lambda _: None)
    monkeypatch.setattr("django.db.close_old_connections", lambda: None)
    monkeypatch.setattr(tasks, "scrape", failing(5, stopping))
    worker.watch("gpu-1", stopping)
    what = "scraping the engines of node gpu-1"
    assert caplog.messages == [f"{what} failed: ConnectionError: Redis is away", f"{what} works again"]
