"""GPU use of a replay, from the nodes' heartbeats."""

import sys
import types
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.evidence.experiments.modes import gpu_use
from controlplane.evidence.experiments.modes.gpu_use import GpuOverTime, GpusOverTime, GpuUse, described
from controlplane.evidence.experiments.record import GpuUseFacts, RunFacts
from controlplane.evidence.experiments.results import kv
from fleet.control import nodes
from fleet.models import Node
from fleet.tests.test_nodes import nvml

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh_inventory():
    """Clear the cache of nodes' inventories, which all tests share."""
    nodes._inventory.cache_clear()
    yield
    nodes._inventory.cache_clear()


def on_gpu(monkeypatch, percent, used=2):
    """Set what NVML reports from now on."""
    module = nvml(
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda handle: "H200",
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=8, used=used),
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=percent),
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)


@pytest.fixture
def watch(tmp_path):
    return GpuUse(("gpu-1", "cpu-1", "new-1"), tmp_path / "runs" / "gpu.json")


def test_each_heartbeat_of_a_node_with_gpus_is_a_point(watch, monkeypatch):
    for at_s, percent, used in ((0.0, 40, 2), (1.0, 99, 9), (5.0, 80, 4)):
        on_gpu(monkeypatch, percent, used)
        nodes.record_heartbeat("gpu-1", timezone.now())
        watch.look(at_s)
    found = watch.so_far().gpus["gpu-1/0"]
    assert found == GpuOverTime("H200", 8, [0.0, 5.0], [0.4, 0.8], [2, 4], 0.6, 0.8)
    assert described(RunFacts(gpu_use=watch.facts())) == "gpu-1/0: mean 60 %, peak 80 %"


def test_a_node_without_a_gpu_or_without_nvml_says_so(watch):
    now = timezone.now()
    Node.objects.create(name="gpu-1", last_seen=now, inventory={"gpus": None, "gpus_why": "NVML does not answer"})
    Node.objects.create(name="cpu-1", last_seen=now, inventory={"gpus": []})
    Node.objects.create(name="new-1", last_seen=now, inventory={})
    watch.look(0.0)
    why = {"gpu-1": "NVML does not answer", "cpu-1": "no GPU on this node", "new-1": "GPUs not reported"}
    assert watch.so_far() == GpusOverTime({}, why)
    assert "cpu-1: no GPU on this node" in described(RunFacts(gpu_use=watch.facts()))
    assert described(RunFacts()) == "–"
    assert described(RunFacts(gpu_use=GpuUseFacts({}, {}))) == "not reported"


def test_an_old_heartbeat_is_not_a_point_and_neither_is_an_unknown_use(watch):
    gpu = {"number": 0, "name": "H200", "memory_bytes": 8, "memory_used_bytes": 2}
    Node.objects.create(name="gpu-1", last_seen=timezone.now() - timedelta(minutes=5),
                        inventory={"gpus": [{**gpu, "use": 0.4}]})  # fmt: skip
    Node.objects.create(name="cpu-1", last_seen=timezone.now(), inventory={"gpus": [{**gpu, "use": None}]})
    watch.look(0.0)
    assert watch.so_far() == GpusOverTime({}, {})


def test_a_long_run_keeps_every_second_point(watch, monkeypatch):
    monkeypatch.setattr(gpu_use, "MOST_POINTS", 4)
    on_gpu(monkeypatch, 40)
    nodes.record_heartbeat("gpu-1", timezone.now())
    for step in range(8):
        watch.look(step * 5.0)
    assert watch.so_far().gpus["gpu-1/0"].at_s == [0.0, 10.0, 20.0, 30.0]
    assert watch.step_s == 10.0


def test_the_api_and_the_page_have_the_series_of_each_run_that_kept_one(ended, ci, vera_client):
    experiment = ended()
    run = experiment.runs.all()[0]
    series = {"at_s": [0.0, 5.0], "use": [0.4, 0.8], "memory_used_bytes": [2, 4], "mean": 0.6, "peak": 0.8}
    kept = GpuUse((), run.gpu_path)
    kept._series["gpu-1/0"] = gpu_use.GpuSeries("H200", 8, [(0.0, 0.4, 2), (5.0, 0.8, 4)])
    kept.look(0.0)
    path = f"/experiments/{experiment.pk}/gpu"
    (found,) = ci.get(path).json()
    assert (found["arm"], found["seed"], found["absent"]) == (run.arm, run.seed, {})
    assert found["gpus"] == [{"id": "gpu-1/0", "name": "H200", "memory_bytes": 8, **series}]
    assert ci.get(f"{path}?arm=nobody").json() == []
    page = vera_client.get(f"/experiments/{experiment.pk}/").content.decode()
    assert "GPU use over time, seed 1" in page
    assert '<td class="number">80 %</td>' in page


@pytest.mark.parametrize(
    ("at_s", "use", "shown"),
    [
        ([0.0, 5.1, 10.2, 15.3], [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),  # each slightly late
        ([3.0, 8.0, 30.0], [0.1, 0.2, 0.3], [0.1, 0.2, 0.2, None, None, None, 0.3]),  # missing for a while
        ([12.0], [0.5], [None, None, 0.5]),
    ],
)
def test_points_become_even_steps_with_a_gap_where_the_node_was_silent(at_s, use, shown):
    assert kv._evenly(at_s, use, 5.0) == shown
