"""Real control workers with their own database, Redis and folder, which tests can kill, stop and wake."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis

from controlplane.base.process import redis_server
from controlplane.base.schedule import reports
from controlplane.doors.up.plan import celery
from controlplane.tests.migrated import migrated

ROOT = Path(__file__).resolve().parents[4]
PATIENCE_S = 90.0


class Workers:
    """Worker processes by name, under which they also hold the lease."""

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
        self.redis = redis.Redis.from_url(self.env["REDIS_URL"])
        migrated(folder)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def manage(self, *words: str) -> str:
        argv = [sys.executable, str(ROOT / "manage.py"), *words]
        done = subprocess.run(argv, env=self.env, cwd=ROOT, text=True, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str) -> None:
        argv = celery(sys.executable, name, "control", "--concurrency=2", "--control")
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                argv, env=self.env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        self.running[name].send_signal(number)
        if number == signal.SIGKILL:
            self.running.pop(name).wait(10)

    def query(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        with sqlite3.connect(self.folder / "weir.sqlite3", timeout=30) as database:
            return database.execute(sql, values).fetchall()

    def lease(self) -> tuple[str, int]:
        """(holder, token)"""
        rows = self.query("select holder, token from schedule_lease")
        return (str(rows[0][0]), int(str(rows[0][1]))) if rows else ("", 0)

    def acts(self, name: str) -> bool:
        """Wait until the worker leads and has completed a step."""
        report = reports.read(self.redis).get("fleet.reconcile")
        return self.lease()[0] == name and report is not None and report.worker == name and report.took_s > 0

    def until(self, holds: Callable[[], bool], what: str) -> float:
        """Return the seconds until the condition was true."""
        began = time.monotonic()
        while not holds():
            logs = "".join(path.read_text()[-1500:] for path in self.folder.glob("*.log"))
            assert time.monotonic() - began < PATIENCE_S, f"{what}: {logs}"
            time.sleep(0.02)
        return time.monotonic() - began

    def close(self) -> None:
        for worker in self.running.values():
            worker.kill()
            worker.wait(10)
        self.store.terminate()
        self.store.wait(10)
