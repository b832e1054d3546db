"""Pods that start and stop, and a pool that sleeps, during requests of clients: a real `manage.py up`, an API server of
the tests, and engines that another system starts.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.tests import real_up
from controlplane.tests.engines.fleet import Fleet
from fleet.tests.clients import Clients
from fleet.tests.cluster import Cluster
from router.tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {{name: moving}}
spec:
  pools:
    - name: pods
      model: llama
      kind: external
      engine: {{kubernetes: {{namespace: llm, selector: app=vllm, port: "{port}"}}}}
    - name: nap
      model: sleeper
      kind: sim
      replicas: 1
      autoscale: {{mode: automatic, min: 0, max: 1, idle_s: 3600, to_zero: sleep, wake_max_wait_s: 5}}
      engine: {{time_scale: 50.0, seed: 1}}
"""
SOON_S = 3.0


@dataclass
class Answer:
    sent_at: float
    seconds: float
    status: int
    instance: str
    held_s: float = 0.0


class Scene:
    """Engines with their own addresses, like Pods."""

    def __init__(self, weir: Any, cluster: Cluster, port: int, stack: ExitStack) -> None:
        self.weir, self.cluster, self.port = weir, cluster, port
        self.fleet = Fleet(weir)
        self._stack = stack

    def engine(self, number: int) -> subprocess.Popen[bytes]:
        words = ("--host", f"127.0.0.{number}", "--port", str(self.port), "--model", "llama", "--time-scale", "20")
        process = subprocess.Popen(
            [sys.executable, "-m", "fleet.simengine", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self.weir.until(lambda: _ok(f"http://127.0.0.{number}:{self.port}/health"), "the engine")
        return process

    def pod(self, name: str, number: int, *, ready: bool = True) -> None:
        self.cluster.put(
            "pods",
            name,
            {
                "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"app": "vllm"}},
                "spec": {"nodeName": "gpu-1"},
                "status": {
                    "phase": "Running",
                    "podIP": f"127.0.0.{number}",
                    "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                },
            },
        )

    def named(self) -> dict[str, str]:
        """Return instances by their address."""
        rows = self.fleet.instances().items()
        return {row["url"].removeprefix("http://").partition(":")[0]: name for name, row in rows}

    def ask(self, client: httpx.Client, model: str, text: str = "hi", tokens: int = 20) -> Answer:
        sent_at = time.monotonic()
        asked = {"model": model, "prompt": text, "max_tokens": tokens, "ignore_eos": True}
        answer = client.post(f"http://127.0.0.1:{self.weir.router_port}/v1/completions", json=asked)
        seconds, told = time.monotonic() - sent_at, answer.headers
        held_s = float(told.get("x-weir-wake-wait", 0))
        return Answer(sent_at, seconds, answer.status_code, told.get("x-weir-instance", ""), held_s)


def _ok(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    document = Path(folder, "fleet.yaml")
    document.write_text(FLEET.format(port=port))
    with ExitStack() as stack:
        cluster = Cluster(folder)
        stack.callback(cluster.close)
        flags = ("--no-demo", "--fleet", str(document))
        weir = stack.enter_context(real_up.running(*flags, KUBECONFIG=str(cluster.kubeconfig())))
        weir.wait_for("Weir is up", 200)
        made = Scene(weir, cluster, port, stack)
        made.fleet.until(lambda: "nap-0" in made.fleet.instances(), "the first instance")
        made.fleet.until_ready("nap-0")
        yield made


def served_by(answers: list[Answer], name: str, since: float) -> list[Answer]:
    return [one for one in answers if one.instance == name and one.sent_at > since]


def test_no_request_is_lost_while_pods_come_and_go(scene: Scene) -> None:
    scene.engine(11)
    second = scene.engine(12)
    scene.pod("a", 11)
    scene.pod("b", 12, ready=False)
    scene.fleet.until(lambda: {"127.0.0.11", "127.0.0.12"} <= scene.named().keys(), "two instances")
    a, b = scene.named()["127.0.0.11"], scene.named()["127.0.0.12"]
    scene.fleet.until_ready(a)
    with Clients(3, lambda client, text: scene.ask(client, "llama", text), pause_s=0.02) as traffic:
        answers = traffic.answers
        scene.weir.until(lambda: sum(one.status == 200 for one in answers) > 20, "requests")
        begun = time.monotonic()
        scene.pod("b", 12)
        scene.weir.until(lambda: served_by(answers, b, begun), "the new Pod to serve")
        came_s = served_by(answers, b, begun)[0].sent_at - begun

        deleted = time.monotonic()
        scene.cluster.delete("b", 30)
        scene.fleet.until(lambda: scene.fleet.one(b)["state"] == "stopped", "the deleted Pod to be gone")
        left_s = max((one.sent_at - deleted for one in served_by(answers, b, deleted)), default=0.0)
        second.terminate()  # Kubernetes ends its process at the latest after its grace period
        scene.cluster.remove("b")

        # A Pod that is killed: its requests are served elsewhere, as no client has received a byte of them.
        third = scene.engine(13)
        scene.pod("c", 13)
        scene.weir.until(lambda: any(one.instance not in ("", a, b) for one in answers), "the third Pod to serve")
        third.kill()
        killed = time.monotonic()
        scene.weir.until(lambda: sum(one.sent_at > killed for one in answers) > 20, "requests after the kill")
    print(f"MOVING in after {came_s:.1f} s, out after {left_s:.1f} s, {len(answers)} requests")
    assert [one for one in answers if one.status != 200 and one.sent_at > begun] == []
    assert came_s <= SOON_S
    assert left_s <= SOON_S


def at_once(scene: Scene, count: int) -> list[Answer]:
    def ask(number: int) -> Answer:
        with httpx.Client(timeout=60) as client:
            return scene.ask(client, "sleeper", f"{number}", 2)

    with ThreadPoolExecutor(count) as clients:
        return list(clients.map(ask, range(count)))


def asleep(scene: Scene) -> None:
    scene.fleet.rest("POST", "/instances/nap-0/sleep", {"reason": "nobody asks"})
    scene.fleet.until(lambda: scene.fleet.one("nap-0")["asleep"] is not None, "sleep")


def test_requests_wake_a_sleeping_pool_once_and_without_a_control_worker_end_at_their_bound(
    scene: Scene,
) -> None:
    asleep(scene)
    answers = at_once(scene, 50)
    assert {one.status for one in answers} == {200}
    woke = max(one.held_s for one in answers)
    late = max(one.seconds - one.held_s for one in answers if one.held_s)
    print(f"MOVING woken after {woke:.1f} s, the last first byte {late:.2f} s later")
    events = scene.fleet.rest("GET", "/instances/nap-0/events")[0]
    assert [one["kind"] for one in events].count("awake") == 1
    assert late <= 0.5

    time.sleep(3)  # otherwise the last report of waiting requests would wake the pool again
    asleep(scene)
    control = scene.weir.child("control")
    os.kill(control, signal.SIGSTOP)
    try:
        refused = at_once(scene, 10)
    finally:
        os.kill(control, signal.SIGCONT)
    assert {one.status for one in refused} == {503}
    assert all(5.0 <= one.seconds < 6.0 for one in refused)
