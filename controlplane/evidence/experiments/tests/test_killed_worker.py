"""kill -9 of the worker in the middle of a run and after it, with real processes and a real database file."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.evidence.experiments.results import records
from controlplane.evidence.experiments.tests.fake_engine import engine_in_a_thread
from controlplane.evidence.experiments.tests.killed_worker import PLACES
from controlplane.tests.migrated import migrated

pytestmark = pytest.mark.slow
SCRIPT = [sys.executable, "-m", "controlplane.evidence.experiments.tests.killed_worker"]


class Worker:
    """Forks the workers, all with one data folder."""

    def __init__(self, folder: Path) -> None:
        database = f"sqlite://{folder / 'weir.sqlite3'}"
        env = {**os.environ, "WEIR_DATA_DIR": str(folder), "DATABASE_URL": database}
        migrated(folder)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(SCRIPT, env=env, text=True, bufsize=1, **pipes)

    def call(self, *words: str) -> Any:
        self._begin(*words)
        return json.loads(list(self.said())[-1])

    def _begin(self, *words: str) -> int:
        """Return the process id."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(words) + "\n")
        return int(next(self.said()))

    def said(self) -> Iterator[str]:
        """Yield the lines that the process prints until it ends."""
        assert self.process.stdout
        return iter(self.process.stdout.readline, "ended\n")

    def killed(self, *words: str, when: Callable[[], None]) -> None:
        pid = self._begin(*words)
        try:
            when()
        finally:
            os.kill(pid, signal.SIGKILL)
            assert list(self.said()) == []


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    made = Worker(tmp_path_factory.mktemp("worker"))
    yield made
    made.process.kill()
    made.process.communicate(timeout=60)


def answered(path: Path) -> int:
    return sum(record.outcome == "ok" for record in records.read(path))


def test_a_killed_worker_loses_no_finished_request_and_its_run_ends_failed(worker: Worker) -> None:
    path = Path(worker.call("prepare", "600")["records"])
    finished = 0

    def some_have_finished() -> None:
        nonlocal finished
        deadline = time.monotonic() + 60
        while engine.answered < 20 and time.monotonic() < deadline:
            time.sleep(0.02)
        finished = engine.answered
        while answered(path) < finished and time.monotonic() < deadline:  # answers in transit still reach the client
            time.sleep(0.02)

    with engine_in_a_thread() as engine:
        worker.killed("run", engine.url, when=some_have_finished)
        kept = records.read(path)
        assert finished >= 20
        assert answered(path) >= finished
        found = worker.call("expire", engine.url)
    assert (found["run"], found["experiment"], found["partial"]) == ("failed", "failed", True)
    assert "worker lost" in found["cause"]
    assert found["n"] == found["done"] == len(kept)


def killed_at(worker: Worker, place: str) -> tuple[Any, int]:
    """Return the state after the kill, and how many records were on the disk at the kill."""

    def stands() -> None:
        assert next(worker.said(), "") == "standing\n", "it ended before the place"

    path = Path(worker.call("prepare", "10")["records"])
    with engine_in_a_thread() as engine:
        worker.killed("run", engine.url, place, when=stands)
        kept = len(records.read(path))
        return worker.call("expire", engine.url), kept


@pytest.mark.parametrize("place", [place for place in PLACES if place != "every request has its record"])
def test_a_worker_that_is_killed_after_its_run_was_performed_loses_no_result(worker: Worker, place: str) -> None:
    found, kept = killed_at(worker, place)
    assert (found["run"], found["experiment"], found["cause"], found["partial"]) == ("done", "done", "", False)
    assert found["n"] == found["done"] == kept > 0


def test_a_run_whose_worker_is_killed_before_marking_it_as_performed_fails_and_keeps_its_records(
    worker: Worker,
) -> None:
    found, kept = killed_at(worker, "every request has its record")
    assert (found["run"], found["experiment"], found["partial"]) == ("failed", "failed", True)
    assert "worker lost: its process ended, while replaying" in found["cause"]
    assert found["n"] == found["done"] == kept > 0
