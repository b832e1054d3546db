"""Previews with a database file, Redis, a Celery worker with its schedule, and `kill -9` of that worker."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.base.process import redis_server
from controlplane.doors.up.plan import celery
from controlplane.tests.migrated import migrated

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[4]

# No worker consumes the node's queue, so no engine is started: the twin needs none.
PREPARE = """
from controlplane.traffic.policies import services
from controlplane.traffic.policies.tests.conftest import edit
from fleet.models import Pool
Pool.objects.create(name="demo", model="llama-3.1-8b", kind="sim", policy="default", replicas=8)
edit(services.ensure_default_policy(), heavy_new_tokens=9000)
"""
START = """
from controlplane.traffic.policies import selectors
from controlplane.evidence.previews import body, services
from controlplane.evidence.previews.tests.conftest import OTTO
print(services.start(selectors.policy("default"), OTTO, body.PreviewIn(seeds={seeds})).pk)
"""


class Running:
    """A separate Weir: folder, Redis, control worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = os.environ | {
            "WEIR_DATA_DIR": str(folder),
            "DATABASE_URL": f"sqlite://{folder}/weir.sqlite3",
            "REDIS_URL": f"unix://{folder}/redis.sock",
        }
        server = redis_server.arguments(redis_server.find_server(), folder / "redis.sock")
        self.store = subprocess.Popen(server, stdout=subprocess.DEVNULL)
        redis_server.wait_until_ready(self.env["REDIS_URL"], self.store)
        migrated(folder)
        self.manage("shell", "-c", PREPARE)
        self.worker: subprocess.Popen[bytes] | None = None

    def manage(self, *words: str) -> str:
        argv = [sys.executable, str(ROOT / "manage.py"), *words]
        done = subprocess.run(argv, env=self.env, cwd=ROOT, text=True, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_worker(self) -> None:
        argv = celery(sys.executable, "control@local", "control", "--concurrency=4", "--control")
        with (self.folder / "worker.log").open("ab") as log:
            self.worker = subprocess.Popen(argv, env=self.env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def kill_worker(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait(10)

    def preview(self, *seeds: int) -> int:
        return int(self.manage("shell", "-c", START.format(seeds=seeds)).splitlines()[-1])

    def row(self, number: int) -> tuple[str, str, int, int]:
        """(status, cause, done, total)"""
        query = "select status, cause, done, total from previews_preview where id = ?"
        with sqlite3.connect(self.folder / "weir.sqlite3", timeout=30) as database:
            return database.execute(query, (number,)).fetchone()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 100
        while not holds():
            assert time.monotonic() < end, f"{what}: {(self.folder / 'worker.log').read_text()[-2000:]}"
            time.sleep(0.1)

    def computing(self) -> set[int]:
        """Processes that compute a preview."""
        assert self.worker is not None
        return {pid for pid in children_of(self.worker.pid) if b"fleet.subprocess" in command_line(pid)}

    def close(self) -> None:
        self.kill_worker()
        self.store.terminate()
        self.store.wait(10)


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found += map(int, task.read_text().split())
    return found


def command_line(pid: int) -> bytes:
    """Return the command line; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def running() -> Iterator[Running]:
    # In /tmp, as the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="weir-preview-", dir="/tmp") as folder:
        made = Running(Path(folder))
        try:
            made.start_worker()
            yield made
        finally:
            made.close()


def test_a_preview_whose_worker_is_killed_is_computed_by_the_next_one_and_its_process_ends(running: Running) -> None:
    number = running.preview(1, 2, 3, 4, 5)
    running.until(lambda: running.row(number)[2] > 0, "it makes progress")
    computing = running.computing()
    assert len(computing) == 1
    running.kill_worker()
    running.until(lambda: not any(command_line(pid) for pid in computing), "its process ends")
    assert running.row(number)[0] == "running"
    running.start_worker()
    running.until(lambda: running.row(number)[1].startswith("worker lost"), "it runs again")
    running.until(lambda: running.row(number)[0] not in ("queued", "running"), "it ends")
    status, cause, done, total = running.row(number)
    assert (status, cause) == ("done", "")
    assert done == total > 3_000
