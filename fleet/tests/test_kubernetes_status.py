"""Derive an instance's state from its Pod's status."""

import datetime as dt
from typing import Any

import msgspec
import pytest

from fleet.kinds.wire import KvWire
from fleet.kubernetes import status
from fleet.kubernetes.objects import Pod
from fleet.kubernetes.status import LOST_S, PATIENCE_S

NOW = 1_800_000_000.0
LOG = ["loading", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"]
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU"}
PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "by kubectl"}


def pod(
    phase: str = "Running",
    state: Any = None,
    conditions: Any = (),
    deleted_s: float | None = None,
    wire: str = "",
    **more: Any,
) -> Pod:
    annotations = {
        "weir/instance": "p-0",
        "weir/epoch": "3",
        "weir/born": "7",
        "weir/url": "http://pod-ip.invalid:8000",
        "weir/wire": wire,
    }
    deadline = None if deleted_s is None else f"{dt.datetime.fromtimestamp(NOW + deleted_s, dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
    metadata = {"name": "p-0-e3", "annotations": annotations, "deletionTimestamp": deadline}
    containers = [{"name": "sidecar", "state": {}}, {"name": "engine", "state": state}] if state is not None else []
    told = {"phase": phase, "containerStatuses": containers, "conditions": list(conditions), **more}
    return msgspec.convert({"metadata": metadata, "spec": {"nodeName": "m1"}, "status": told}, Pod)


def waiting(reason: str, message: str = "") -> Pod:
    return pod("Pending", {"waiting": {"reason": reason, "message": message}})


def ended(reason: str = "Error", code: int = 1) -> Pod:
    return pod("Failed", {"terminated": {"exitCode": code, "reason": reason}})


@pytest.mark.parametrize(
    ("seen", "waits_for"),
    [
        (pod("Pending"), "its Pod waits for a machine"),
        (
            pod("Pending", conditions=[UNSCHEDULABLE]),
            "waits for capacity in the cluster (Unschedulable: 0/3 nodes: no GPU)",
        ),
        (
            waiting("ContainerCreating"),
            "its container is being created (ContainerCreating); an image pull may take minutes",
        ),
        (waiting("ImagePullBackOff", "no such tag"), "its image cannot be pulled: correct engine.image"),
        (pod("Running", {"running": {}}), ""),
        (pod("Unknown"), ""),
    ],
)
def test_a_running_or_pending_pod_is_alive_and_reports_what_it_waits_for(seen: Pod, waits_for: str) -> None:
    found = status.process_status(seen, NOW, 5)
    assert (found.alive, found.suspended_why) == (True, "")
    assert found.waits_for.startswith(waits_for)
    assert bool(found.waits_for) == bool(waits_for)


@pytest.mark.parametrize(
    "reason", ["ErrImagePull", "InvalidImageName", "CreateContainerConfigError", "RunContainerError"]
)
def test_an_instance_that_cannot_start_fails_after_a_while(reason: str) -> None:
    seen = waiting(reason, "manifest unknown")
    assert status.process_status(seen, NOW, PATIENCE_S - 1).alive is True
    found = status.process_status(seen, NOW, PATIENCE_S)
    assert (found.alive, found.end_text) == (False, "its Pod did not start")
    assert f"({reason}: manifest unknown)" in status.failure_cause(seen, [])


def test_a_pod_waits_for_room_indefinitely() -> None:
    assert status.process_status(pod("Pending", conditions=[UNSCHEDULABLE]), NOW, 86_400).alive is True


@pytest.mark.parametrize("seen", [ended(), ended("Completed", 0), pod("Failed", reason="Evicted"), pod("Succeeded")])
def test_a_pod_that_has_ended_is_not_alive(seen: Pod) -> None:
    found = status.process_status(seen, NOW, 5)
    assert (found.alive, found.end_text) == (False, "its Pod ended")


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (ended(), "exit status 1: the GPU has too little memory: "),
        (ended("OOMKilled", 137), "the container exceeded its memory limit: raise placement.memory_gib (OOMKilled)"),
        (ended("StartError", 128), "its command cannot run in that image: correct engine.image (StartError)"),
        (
            pod("Failed", reason="Evicted", message="The node was low on resource: memory."),
            "evicted by its machine (Evicted: The node was low on resource: memory.)",
        ),
        (pod("Failed", reason="OutOfnvidia.com/gpu", message="none left"), "OutOfnvidia.com/gpu: none left"),
        (pod("Running", {"running": {}}, deleted_s=-60), "its machine m1 does not report its end"),
    ],
)
def test_an_ended_pod_has_its_cause_and_advice(seen: Pod, words: str) -> None:
    assert status.failure_cause(seen, LOG).startswith(words)


@pytest.mark.parametrize(
    ("conditions", "who"), [([PREEMPTED], "EvictionByEvictionAPI: by kubectl"), ([], "requested from outside")]
)
def test_an_instance_that_is_being_deleted_gets_no_requests(conditions: Any, who: str) -> None:
    found = status.process_status(pod("Running", {"running": {}}, conditions, deleted_s=20), NOW, 500)
    assert (found.alive, found.suspended_why) == (True, f"its Pod is being deleted: {who}")


def test_an_overdue_stop_is_abandoned() -> None:
    assert status.is_over(pod("Running", deleted_s=-LOST_S + 1), NOW) is False
    assert status.is_over(pod("Running", deleted_s=-LOST_S), NOW) is True


def test_the_pods_address_replaces_its_placeholder() -> None:
    seen = pod(podIP="10.1.2.3", wire='{"events": "http://pod-ip.invalid:8000"}')
    assert status.located(seen) == ("http://10.1.2.3:8000", KvWire(events="http://10.1.2.3:8000"))
    assert status.located(pod()) is None
    assert status.located(pod(podIP="fd00::1")) == ("http://[fd00::1]:8000", KvWire())


def test_the_annotations_identify_the_owner() -> None:
    assert (pod().instance, pod().epoch, pod().born) == ("p-0", 3, "7")
    stranger = msgspec.convert({"metadata": {"name": "x"}}, Pod)
    assert (stranger.instance, stranger.epoch) == ("", 0)
