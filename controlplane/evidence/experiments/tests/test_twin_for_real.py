"""Experiments in the twin through Redis and Celery, as `manage.py up` runs them."""

import json
import os
import signal
import time
import urllib.request

import pytest

from controlplane.tests.real_up import running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {name: small}
spec:
  pools:
    - {name: demo, model: llama-3.1-8b, kind: sim, replicas: 1, engine: {time_scale: 10.0, seed: 1}}
"""
LONG = {"duration_s": 86400, "seeds": list(range(20))}  # a minute and more of computing


@pytest.fixture(scope="module")
def weir(tmp_path_factory):
    fleet = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    fleet.write_text(FLEET)
    with running("--no-demo", "--fleet", str(fleet)) as weir:
        weir.wait_for("Weir is up")
        yield weir


def call(weir, path, body=None):
    request = urllib.request.Request(f"http://127.0.0.1:{weir.web_port}/api/v1{path}")
    request.add_header("authorization", f"Bearer {(weir.folder / 'token').read_text().strip()}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def start(weir, **changes):
    asked = {"name": "A vs B", "trace": "agentic-demo", "pool": "demo", "mode": "twin", "arms": ["lpwl", "adaptive_v1"]}
    return call(weir, "/experiments", {**asked, **changes})["id"]


def watch(weir, number, holds, within_s=120.0):
    """Return the experiment once `holds` is true of it, and how long that took."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        found = call(weir, f"/experiments/{number}")
        if holds(found):
            return found, time.monotonic() - began
        time.sleep(0.1)
    raise AssertionError(f"waited in vain; {found}")


def runs_by(found, status):
    return [run for run in found["runs"] if run["status"] == status]


def test_an_experiment_runs_to_its_end_in_the_worker(weir):
    number = start(weir, duration_s=120, seeds=[1, 2])
    found, _ = watch(weir, number, lambda found: found["status"] not in ("queued", "running"))
    assert (found["status"], found["cause"]) == ("done", "")
    assert {(run["status"], run["done"] > 0) for run in found["runs"]} == {("done", True)}


def test_cancelling_stops_an_experiment_within_five_seconds_and_keeps_the_earlier_runs(weir):
    number = start(weir, **LONG)
    watch(weir, number, lambda found: runs_by(found, "done") and any(run["done"] for run in runs_by(found, "running")))
    call(weir, f"/experiments/{number}/cancel", {})
    found, took = watch(weir, number, lambda found: not runs_by(found, "running"))
    assert took < 5
    assert found["status"] == "cancelled"
    assert runs_by(found, "done")


def test_a_killed_worker_loses_its_current_run_and_no_other(weir):
    number = start(weir, **LONG)
    before, _ = watch(weir, number, lambda found: runs_by(found, "done") and runs_by(found, "running"))
    os.kill(weir.children()["experiments"], signal.SIGKILL)
    found, _ = watch(weir, number, lambda found: found["status"] == "failed")
    assert "worker lost" in found["cause"]
    ended = {run["id"] for run in runs_by(before, "done")}
    kept = {run["id"] for run in runs_by(found, "done")}
    assert ended <= kept
    figures = call(weir, f"/experiments/{number}/results")
    counted = {run["id"]: run["all"]["ok"] for arm in figures["arms"] for run in arm["runs"]}
    assert all(counted[number] > 0 for number in kept)
