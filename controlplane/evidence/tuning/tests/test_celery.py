"""A tuning with real processes: a web process, a control worker that is killed, Optuna, curl and `weir tune`."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane.doors.cli.tests.test_pipelines import MAKE
from controlplane.doors.cli.views import archive
from controlplane.doors.up.plan import celery
from controlplane.evidence.previews.tests.test_celery import children_of, command_line
from controlplane.testing_browser import ROOT, Web, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WAIT_S = 300.0  # enough for a busy machine; each wait ends as soon as its condition holds
TUNINGS = "/policies/default/tunings"
TRIALS = 12
LONG = {"trace": "agentic-demo", "max_requests": 400, "trials": TRIALS, "workers": 1}
TUNE = ("tune", "default", "--trace", "agentic-demo", "--trials", "2", "--workers", "2", "--draft", "ttft")


class Plane:
    def __init__(self, web: Web) -> None:
        self.web = web
        argv = [sys.executable, "manage.py", "shell", "--verbosity", "0", "-c", MAKE]
        made = subprocess.run(argv, cwd=ROOT, env=web.environment, capture_output=True, text=True, check=True)
        self.token = made.stdout.strip()

    def start_worker(self) -> subprocess.Popen[bytes]:
        argv = celery(sys.executable, "control@local", "control", "--concurrency=4", "--control")
        with (self.web.folder / "worker.log").open("ab") as log:
            worker = subprocess.Popen(argv, cwd=ROOT, env=self.web.environment, stdout=log, stderr=log)
        self.web.processes["worker"] = worker
        return worker

    def curl(self, path: str, *flags: str) -> Any:
        argv = ["curl", "-sS", "--fail-with-body", "-H", f"authorization: Bearer {self.token}"]
        argv += ["-H", "content-type: application/json", *flags, f"{self.web.url}/api/v1{path}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def weir(self, *words: str) -> subprocess.CompletedProcess[str]:
        file = self.web.folder / "weir"
        file.write_bytes(archive())
        argv = [sys.executable, str(file), *words]
        env = {"WEIR_URL": self.web.url, "WEIR_TOKEN": self.token}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=WAIT_S)

    def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end, (self.web.folder / "worker.log").read_text()[-2_000:]
            time.sleep(0.1)

    def ended(self, path: str) -> dict[str, Any]:
        self.until(lambda: self.curl(path)["status"] not in ("queued", "running"))
        found: dict[str, Any] = self.curl(path)
        return found


@pytest.fixture
def plane() -> Iterator[Plane]:
    with serving() as web:
        yield Plane(web)


def test_a_tuning_whose_worker_is_killed_continues_and_after_a_second_kill_when_it_is_resumed(plane: Plane) -> None:
    worker = plane.start_worker()
    path = f"{TUNINGS}/{plane.curl(TUNINGS, '-d', json.dumps(LONG))['id']}"
    plane.until(lambda: plane.curl(path)["done"] >= 2 or plane.curl(path)["cause"] != "")
    computing = [pid for pid in children_of(worker.pid) if b"fleet.subprocess" in command_line(pid)]
    plane.web.stop("worker")  # kill -9
    plane.start_worker()
    plane.until(lambda: plane.curl(path)["cause"].startswith("worker lost"))
    kept = plane.curl(path)["done"]
    plane.until(lambda: plane.curl(path)["done"] > kept)
    plane.web.stop("worker")
    plane.start_worker()
    failed = plane.ended(path)
    assert (failed["status"], failed["cause"][:11]) == ("failed", "worker lost"), failed["cause"]
    assert kept < len(failed["trials"]) < TRIALS
    assert len(computing) == 1
    plane.until(lambda: not command_line(computing[0]))

    assert plane.curl(f"{path}/resume", "-d", "{}")["status"] == "queued"
    done = plane.ended(path)
    assert (done["status"], done["cause"], done["done"]) == ("done", "", TRIALS)
    assert done["trials"][: len(failed["trials"])] == failed["trials"]
    assert [each["number"] for each in done["trials"]] == list(range(1, TRIALS + 1))
    assert {each["check"]["n"] for each in done["result"]["winners"]} == {120}

    told = plane.weir(*TUNE)
    assert told.returncode == 0, told.stderr
    assert "is the draft of default, not published" in told.stdout
    assert "Not tested" in plane.curl("/policies/default/draft")["note"]
