"""What the pages, the API and the doctor say of a node that is a namespace of a cluster."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane import doctor
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
    assert "takes instances" in page


def test_a_node_whose_cluster_is_away_says_so(node: Node, viewer: Client) -> None:
    Node.objects.update(inventory=node.inventory | {"trouble": "the API server is not reached"})
    page = viewer.get("/fleet/nodes/k8s/").content.decode()
    assert "It can start and end nothing." in page
    assert "the API server is not reached" in page
    assert "can start nothing" in page


def test_an_instance_names_its_pod(node: Node, viewer: Client) -> None:
    pool = Pool.objects.create(name="p", model="m", kind="sim", node="k8s")
    Instance.objects.create(pool=pool, name="p-0", ordinal=0, node="k8s", pod="p-0-e3")
    assert "p-0-e3" in viewer.get("/fleet/instances/p-0/").content.decode()
    assert viewer.get("/api/v1/instances/p-0").json()["pod"] == "p-0-e3"


def test_the_doctor_asks_nothing_where_there_is_no_cluster(settings: Any) -> None:
    settings.KUBERNETES_NAMESPACE = ""
    assert doctor.kubernetes() == []


def test_the_doctor_says_what_a_node_may_not(settings: Any, clusters: Callable[..., Cluster]) -> None:
    settings.KUBERNETES_NAMESPACE = "weir"
    cluster = clusters()
    (found,) = doctor.kubernetes()
    assert (found.good, found.text) == (True, f"http://127.0.0.1:{cluster.port}, v1.37.0, namespace weir")
    cluster.forbidden |= {("create", "secrets"), ("delete", "pods")}
    (found,) = doctor.kubernetes()
    assert (found.good, found.text[-37:]) == (False, ", may not delete pods, create secrets")
    cluster.stop()
    (found,) = doctor.kubernetes()
    assert not found.good
    assert "is not reached" in found.text
