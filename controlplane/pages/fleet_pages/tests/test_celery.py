"""The whole fleet with real processes: Redis, a database file, a Celery worker with its schedule, simulated engines."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from controlplane.base.process import redis_server
from controlplane.doors.up.plan import celery
from controlplane.tests.migrated import migrated
from router.contract.redis import redis_keys
from router.tests.ports import engine_ports
from router.tests.values import loaded

ROOT = Path(__file__).resolve().parents[4]
FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {name: test}
spec:
  pools:
    - {name: demo, model: m, kind: sim, replicas: %d, engine: {time_scale: 10}}
"""


class Running:
    """A separate Weir: folder, Redis, worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = os.environ | {
            "WEIR_DATA_DIR": str(folder),
            "DATABASE_URL": f"sqlite://{folder}/weir.sqlite3",
            "REDIS_URL": f"unix://{folder}/redis.sock",
            "WEIR_ENGINE_PORTS": "{}-{}".format(*engine_ports()),
        }
        server = redis_server.arguments(redis_server.find_server(), folder / "redis.sock")
        self.store = subprocess.Popen(server, stdout=subprocess.DEVNULL)
        redis_server.wait_until_ready(self.env["REDIS_URL"], self.store)
        self.redis = redis.Redis.from_url(self.env["REDIS_URL"])
        migrated(folder)
        self.worker: subprocess.Popen[bytes] | None = None

    def manage(self, *words: str, text: str = "") -> str:
        argv = [sys.executable, str(ROOT / "manage.py"), *words]
        done = subprocess.run(argv, env=self.env, cwd=ROOT, input=text, text=True, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_worker(self) -> None:
        argv = celery(
            sys.executable, "control@local", "control,node.local", "--concurrency=4", "--control", "--node", "local"
        )
        log = (self.folder / "worker.log").open("ab")
        with log:
            self.worker = subprocess.Popen(argv, env=self.env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def kill_worker(self) -> None:
        if self.worker is not None:
            os.killpg(self.worker.pid, signal.SIGKILL)
            self.worker.wait(10)

    def instances(self) -> dict[str, dict[str, Any]]:
        value = loaded(self.redis.get(redis_keys.fleet_key("demo")))  # type: ignore[arg-type]
        return {entry["id"]: entry for entry in value["instances"]} if value else {}

    def pids(self) -> dict[str, int]:
        with sqlite3.connect(self.folder / "weir.sqlite3", timeout=30) as database:
            return dict(database.execute("SELECT name, pid FROM fleet_instance"))

    def until(self, condition: Callable[[], bool], limit_s: float = 60) -> float:
        """Return the seconds until the condition held."""
        begin = time.monotonic()
        while not condition():
            log = (self.folder / "worker.log").read_text()[-2000:]
            assert time.monotonic() - begin < limit_s, f"{self.instances()}\n{log}"
            time.sleep(0.02)
        return time.monotonic() - begin

    def ready(self, count: int) -> Callable[[], bool]:
        return lambda: sum(entry["routable"] for entry in self.instances().values()) == count

    def left(self, name: str) -> bool:
        """Return whether the instance's first process is out of routing; the next one may already be in."""
        entry = self.instances().get(name)
        return entry is None or entry["epoch"] > 1 or not entry["routable"]

    def close(self) -> None:
        self.kill_worker()
        self.manage("fleet_stop_all", "--grace", "2")
        self.redis.close()
        self.store.terminate()
        self.store.wait(10)


@pytest.fixture
def running() -> Iterator[Running]:
    # In /tmp, as the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="weir-celery-", dir="/tmp") as folder:
        prepared = Running(Path(folder))
        try:
            yield prepared
        finally:
            prepared.close()


@pytest.mark.slow
def test_a_worker_starts_the_fleet_replaces_dead_processes_and_adopts_running_ones(running: Running) -> None:
    running.manage("fleet_apply", "-", text=FLEET % 3)
    running.start_worker()
    print("ready after", running.until(running.ready(3)))
    url = running.instances()["demo-0"]["url"]
    assert json.load(urllib.request.urlopen(f"{url}/v1/models", timeout=5))["data"][0]["id"] == "m"
    sample = loaded(running.redis.get(redis_keys.instance_key("demo-0")))  # type: ignore[arg-type]
    assert sample is not None
    assert sample["kv_blocks"] > 10_000

    pids = running.pids()
    os.kill(pids["demo-1"], signal.SIGKILL)
    print("killed: out of routing after", running.until(lambda: running.left("demo-1")))
    os.kill(pids["demo-2"], signal.SIGSTOP)
    print("suspended: out of routing after", running.until(lambda: running.left("demo-2")))
    print("routable again after", running.until(running.ready(3)))
    now = running.instances()
    assert [now[name]["epoch"] for name in ("demo-0", "demo-1", "demo-2")] == [1, 2, 2]

    pids = running.pids()
    running.kill_worker()
    running.start_worker()
    before = loaded(running.redis.get(redis_keys.instance_key("demo-0")))  # type: ignore[arg-type]
    assert before is not None
    running.until(lambda: loaded(running.redis.get(redis_keys.instance_key("demo-0")))["at"] > before["at"] + 3)  # type: ignore[arg-type, index]
    assert running.pids() == pids
    assert running.ready(3)()

    running.redis.delete(redis_keys.fleet_key("demo"))
    print("republished after", running.until(running.ready(3)))
