"""kill -9 of the worker in the middle of a run: real processes, a real database file."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controlplane.experiments.results import records
from controlplane.experiments.tests.fake_engine import engine_in_a_thread

SCRIPT = [sys.executable, "-m", "controlplane.experiments.tests.killed_worker"]


def answered(path: Path) -> int:
    return sum(record.outcome == "ok" for record in records.read(path))


@pytest.mark.slow
def test_a_killed_worker_loses_no_finished_request_and_its_run_ends_failed(tmp_path):
    env = {**os.environ, "WEIR_DATA_DIR": str(tmp_path), "DATABASE_URL": f"sqlite://{tmp_path / 'weir.sqlite3'}"}

    def call(*argv: str) -> str:
        return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout

    call(sys.executable, "manage.py", "migrate", "--verbosity=0")
    path = Path(json.loads(call(*SCRIPT, "prepare").splitlines()[-1])["records"])
    with engine_in_a_thread() as engine:
        worker = subprocess.Popen([*SCRIPT, "run", engine.url], env=env, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while engine.answered < 20 and time.monotonic() < deadline:
            time.sleep(0.02)
        finished = engine.answered
        while answered(path) < finished and time.monotonic() < deadline:  # what has left the engine reaches the client
            time.sleep(0.02)
        worker.kill()
        worker.wait(timeout=60)
    kept = records.read(path)
    assert finished >= 20
    assert answered(path) >= finished
    found = json.loads(call(*SCRIPT, "expire").splitlines()[-1])
    assert (found["run"], found["experiment"], found["partial"]) == ("failed", "failed", True)
    assert "worker lost" in found["cause"]
    assert found["n"] == found["done"] == len(kept)
