"""kill -9 of the worker in the middle of a calibration: real processes, a real database file."""

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controlplane.tests.migrated import migrated

MEASURE = """
import asyncio
from fleet.calibration import services
from fleet.tests.calibration.rows import instance, measure_well
instance()
services.measure = measure_well
assert services.perform(services.ask_for("chat-0", "ada").pk)
async def for_ever(target, seconds, tell, *, anyway):
    tell("round 1")
    await asyncio.sleep(600)
services.measure = for_ever
services.perform(services.ask_for("chat-0", "ada").pk)
"""
EXPIRE = """
from fleet import jobs
from fleet.calibration import selectors, services
from fleet.models import Calibration
from fleet.tries import tries
with tries() as attempt:
    jobs.fail_lost(Calibration, services.fail, attempt)
assert selectors.newest("chat-0").n == 48
print(selectors.last_asked("chat-0").cause)
"""


@pytest.mark.slow
def test_a_killed_worker_fails_its_calibration_and_the_earlier_one_stays_in_force(tmp_path: Path) -> None:
    database = tmp_path / "weir.sqlite3"
    env = {**os.environ, "WEIR_DATA_DIR": str(tmp_path), "DATABASE_URL": f"sqlite://{database}"}

    def manage(*words: str) -> str:
        argv = (sys.executable, "manage.py", *words)
        return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout

    migrated(tmp_path)
    worker = subprocess.Popen((sys.executable, "manage.py", "shell", "-v0", "-c", MEASURE), env=env)
    deadline = time.monotonic() + 60
    while step_of_the_last(database) != "round 1":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker.kill()
    worker.wait(timeout=60)
    assert manage("shell", "-v0", "-c", EXPIRE).startswith("worker lost: its process ended")


def step_of_the_last(database: Path) -> str:
    with sqlite3.connect(database, timeout=10) as connection:
        row = connection.execute("select step from fleet_calibration order by id desc limit 1").fetchone()
    return row[0] if row else ""
