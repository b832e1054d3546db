"""The use of an instance's GPUs is shown with its source, and an unknown one with the reason."""

import datetime as dt

import pytest
from django.utils import timezone

from controlplane.pages.fleet_ops.node_rows import gpu_use_of, simulated_use
from fleet.models import Instance, Node
from router.contract.redis.sample import GpuSample, InstanceSample

pytestmark = pytest.mark.django_db


def sample(gpu: GpuSample | None) -> InstanceSample:
    return InstanceSample(id="chat-0", epoch=1, at=0.0, gpu=gpu)


def test_a_simulated_engine_names_its_law_and_one_without_gpus_shows_nothing() -> None:
    there = Instance(name="chat-0", node="gpu-1")
    known = GpuSample(use=0.45, memory=0.9, power_w=1234.5, simulated=True)
    rest = "by the law of the simulated engine; it knows no temperature or clock"
    assert gpu_use_of(there, sample(known)) == f"45 % of the last minute, 90 % of the memory, 1,234 W, {rest}"
    assert gpu_use_of(there, sample(GpuSample(memory=0.9, simulated=True))) == f"90 % of the memory, {rest}"
    two = [sample(known), None, sample(GpuSample(use=0.05, memory=0.7, simulated=True)), sample(GpuSample(use=1.0))]
    assert simulated_use(two).startswith("25 % of the last minute, 80 % of the memory, 1,234 W, by the law of 2 sim")
    assert gpu_use_of(there, sample(None)) == gpu_use_of(there, None) == ""


def test_unreported_gpus_say_why() -> None:
    there = Instance(name="chat-0", node="gpu-1", gpus=[1])
    assert gpu_use_of(there, None) == "not reported"
    inventory = {"gpus": None, "gpus_why": "nvidia-ml-py is not installed"}
    node = Node.objects.create(name="gpu-1", inventory=inventory, last_seen=timezone.now())
    assert gpu_use_of(there, None) == "not reported: nvidia-ml-py is not installed"
    gpu = {"number": 1, "name": "H200", "memory_bytes": 2**31, "memory_used_bytes": 2**30, "use": 0.5, "power_w": 412}
    Node.objects.filter(pk=node.pk).update(inventory={"gpus": [gpu]})
    assert gpu_use_of(there, None) == "1: 50 %, 1.0 of 2.0 GiB, 412 W"
    Node.objects.filter(pk=node.pk).update(last_seen=timezone.now() - dt.timedelta(seconds=31))
    assert gpu_use_of(there, None) == "not reported: its node is silent"
