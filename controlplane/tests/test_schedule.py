"""The schedule goes on after the machine's clock was set."""

import datetime as dt
import time

import pytest

from controlplane import worker
from controlplane.celery import app


class Clock:
    """The wall clock; the monotonic one goes on."""

    def __init__(self):
        self.ahead_s = 0.0

    def time(self):
        return time.time() + self.ahead_s

    def now(self):
        return dt.datetime.fromtimestamp(self.time(), dt.UTC)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(worker, "_offset", lambda: made.time() - time.monotonic())
    monkeypatch.setattr(app, "now", made.now)
    return made


@pytest.fixture
def sent(monkeypatch):
    names = []
    monkeypatch.setattr(
        worker.BeatScheduler, "apply_entry", lambda self, entry, producer=None: names.append(entry.name)
    )
    monkeypatch.setattr(worker.BeatScheduler, "producer", None)
    return names


def due_within(scheduler, sent, seconds):
    """The entries sent in so many seconds."""
    sent.clear()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(max(scheduler.tick(), 0.0), 0.02))
    return set(sent)


@pytest.mark.slow
@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0])
def test_after_the_clock_is_set_each_step_is_taken_again_within_its_time(clock, sent, set_by_s):
    scheduler = worker.BeatScheduler(app, lazy=True)
    scheduler.setup_schedule()
    assert {"fleet.reconcile", "fleet.scrape"} <= due_within(scheduler, sent, 1.5)
    clock.ahead_s = set_by_s
    assert {"fleet.reconcile", "fleet.scrape"} <= due_within(scheduler, sent, 1.5)
    assert "notices.clean_up" not in due_within(scheduler, sent, 0.2)


def test_a_clock_that_is_slewed_changes_nothing(clock, sent):
    scheduler = worker.BeatScheduler(app, lazy=True)
    scheduler.setup_schedule()
    scheduler.tick()
    heap = scheduler._heap
    clock.ahead_s = 0.5
    scheduler.tick()
    assert scheduler._heap is heap


def test_the_workers_use_it():
    assert app.conf.beat_scheduler == "controlplane.worker:BeatScheduler"
