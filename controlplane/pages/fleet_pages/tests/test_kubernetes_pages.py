"""A node that is a namespace of a cluster, on pages, over REST and in doctor."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from msgspec import to_builtins

from controlplane.doors import doctor
from fleet import services
from fleet.kubernetes.pod_settings import PodSettings, public_settings
from fleet.models import Instance, Node, Pool
from fleet.tests.cluster import Cluster
from fleet.tests.conftest import clusters

__all__ = ["clusters"]
GPU = {"number": 0, "name": "H200", "memory_bytes": None, "memory_used_bytes": None, "use": None}


@pytest.fixture
def node(db: None) -> Node:
    inventory = {"cpus": 8.0, "memory_bytes": 2**34, "disks": [], "gpus": [GPU, GPU], "system": "Kubernetes v1.37.0"}
    return Node.objects.create(name="k8s", last_seen=timezone.now(), inventory=inventory)


def test_a_node_shows_its_cluster(node: Node, viewer: Client) -> None:
    page = viewer.get("/fleet/nodes/k8s/").content.decode()
    assert "2 × H200" in page
    assert "<dd>Kubernetes v1.37.0</dd>" in page
    assert "schedulable" in page


def test_a_node_whose_cluster_is_unreachable_says_so(node: Node, viewer: Client) -> None:
    Node.objects.update(inventory=node.inventory | {"trouble": "the API server is not reached"})
    page = viewer.get("/fleet/nodes/k8s/").content.decode()
    assert "It cannot start or end instances." in page
    assert "the API server is not reached" in page
    assert "cannot start instances" in page


def test_an_instance_shows_its_pod(node: Node, viewer: Client) -> None:
    pool = Pool.objects.create(name="p", model="m", kind="sim", node="k8s")
    Instance.objects.create(pool=pool, name="p-0", ordinal=0, node="k8s", pod="p-0-e3")
    assert "p-0-e3" in viewer.get("/fleet/instances/p-0/").content.decode()
    assert viewer.get("/api/v1/instances/p-0").json()["pod"] == "p-0-e3"


def reported(node: Node, **template: Any) -> None:
    place = PodSettings("engines", {"vllm": "vllm:mine"}, {}, template)
    Node.objects.filter(pk=node.pk).update(inventory=node.inventory | {"pods": to_builtins(public_settings(place))})


POOL = {"name": "chat", "model": "llama", "kind": "vllm", "node": "k8s", "engine": {"tensor_parallel": 4}}


def document(**other: Any) -> dict[str, Any]:
    pool = {name: value for name, value in (POOL | other).items() if value}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": [pool]}}


def test_a_plan_shows_the_pod_that_would_be_started(node: Node, operator: Client) -> None:
    reported(node, spec={"containers": [{"name": "engine", "env": [{"name": "HF_TOKEN", "value": "hf-1"}]}]})
    page = operator.post("/fleet/apply", {"step": "plan", "document": json.dumps(document())}).content.decode()
    assert '<dd class="mono break">vllm:mine</dd>' in page
    assert "<dt>Limits</dt><dd>nvidia.com/gpu 4</dd>" in page
    assert "--host &#x27;$(WEIR_POD_IP)&#x27;" in page
    assert "namespace: engines" in page
    assert "(hidden)" in page
    assert "hf-1" not in page


def test_a_pool_shows_the_pod_of_its_next_start(node: Node, viewer: Client, live_redis: object) -> None:
    reported(node)
    services.apply_fleet(document(), "ada")
    Instance.objects.create(pool=Pool.objects.get(), name="chat-0", ordinal=0, node="k8s", epoch=3)
    page = viewer.get("/fleet/pools/chat/").content.decode()
    assert '<dd class="mono break">vllm:mine</dd>' in page
    assert "name: chat-0-e4" in page


def test_a_pod_without_an_image_is_reported_before_it_is_started(
    node: Node, operator: Client, live_redis: object
) -> None:
    reported(node)
    services.apply_fleet(document(name="store", kind="mooncake-master", engine={}), "ada")
    page = operator.get("/fleet/pools/store/").content.decode()
    assert "It cannot start on the node k8s." in page
    assert "no image for the kind mooncake-master: set engine.image" in page


def test_the_check_over_rest_reports_the_pod(node: Node, operator: Client) -> None:
    reported(node)
    (found,) = operator.post("/api/v1/fleet/check", document(), content_type="application/json").json()
    assert (found["elsewhere"], found["files"], found["findings"]) == ("k8s", {}, [])
    assert (found["pod"]["image"], found["pod"]["resources"]["limits"]) == ("vllm:mine", {"nvidia.com/gpu": "4"})


def test_a_dry_run_on_the_command_line_names_the_image(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reported(node)
    (tmp_path / "fleet.json").write_text(json.dumps(document()))
    with pytest.raises(SystemExit):
        call_command("fleet_apply", str(tmp_path / "fleet.json"), "--dry-run")
    assert "chat starts: a Pod of vllm:mine on k8s: python3 -m vllm." in capsys.readouterr().out


def test_the_command_line_of_a_host_is_shown_if_hosts_can_run_it(
    node: Node, viewer: Client, live_redis: object
) -> None:
    reported(node)
    Node.objects.create(name="gpu-1", last_seen=timezone.now())
    services.apply_fleet(document(node="", placement={"nodes": ["k8s", "gpu-1"]}), "ada")
    page = viewer.get("/fleet/pools/chat/").content.decode()
    assert "vllm:mine" not in page
    assert "--tensor-parallel-size 4" in page


def test_without_a_cluster_the_doctor_checks_none(settings: Any) -> None:
    settings.KUBERNETES_NAMESPACE = ""
    assert doctor.kubernetes() == []


def test_the_doctor_names_the_rights_that_a_node_lacks(settings: Any, clusters: Callable[..., Cluster]) -> None:
    settings.KUBERNETES_NAMESPACE = "weir"
    cluster = clusters()
    (found,) = doctor.kubernetes()
    assert (found.good, found.text) == (True, f"http://127.0.0.1:{cluster.port}, v1.37.0, namespace weir")
    cluster.forbidden |= {("create", "secrets"), ("delete", "pods")}
    (found,) = doctor.kubernetes()
    assert (found.good, found.text[-42:]) == (False, ", not allowed: delete pods, create secrets")
    cluster.stop()
    (found,) = doctor.kubernetes()
    assert not found.good
    assert "cannot be reached" in found.text
