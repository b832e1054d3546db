"""Requests to an API server: their results, and one clear message for each way in which they can fail."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.kubernetes import api
from fleet.kubernetes.api import Absent, Exists, Expired, Forbidden, KubernetesApi, KubernetesError, NotReached
from fleet.kubernetes.objects import Pod
from fleet.tests.cluster import Cluster

SELECTOR = "weir/node=k8s"
POD = {
    "metadata": {"name": "p-0-e1", "labels": {"weir/node": "k8s"}},
    "spec": {"containers": [{"name": "engine", "image": "x"}]},
}


@pytest.fixture
def cluster(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters()


@pytest.fixture
def server(cluster: Cluster) -> Iterator[KubernetesApi]:
    prepared = KubernetesApi("weir")
    yield prepared
    prepared.close()


def test_a_pod_is_created_listed_read_and_deleted(server: KubernetesApi, cluster: Cluster) -> None:
    prepared = server.create_pod(POD)
    assert prepared.metadata.uid
    pods, version = server.list_pods(SELECTOR)
    assert [pod.name for pod in pods] == ["p-0-e1"]
    assert version == prepared.metadata.resource_version
    assert server.read_pod("p-0-e1").status.phase == "Pending"
    assert server.list_pods("weir/node=other")[0] == []
    assert server.delete_pod("p-0-e1", 5) is True
    assert server.delete_pod("p-0-e1", 5) is False
    assert cluster.pods() == {}


def test_the_log_is_read_from_its_end(server: KubernetesApi, cluster: Cluster) -> None:
    server.create_pod(POD)
    cluster.logs["p-0-e1"] = "one\ntwo\nthree\n"
    assert server.log("p-0-e1", 2) == ["two", "three"]


def test_a_name_in_use_raises_its_own_error(server: KubernetesApi) -> None:
    server.create_pod(POD)
    with pytest.raises(Exists, match='pods "p-0-e1" already exists'):
        server.create_pod(POD)
    with pytest.raises(Absent, match='pods "nobody" not found'):
        server.read_pod("nobody")


def test_a_forbidden_call_names_verb_resource_and_account(server: KubernetesApi, cluster: Cluster) -> None:
    cluster.forbidden.add(("create", "pods"))
    with pytest.raises(Forbidden, match=r'cannot create resource "pods".*in the namespace "weir"; give the role that'):
        server.create_pod(POD)
    assert (server.may("create", "pods"), server.may("delete", "pods")) == (False, True)


def test_rejected_credentials_name_what_to_renew(cluster: Cluster) -> None:
    cluster.kubeconfig(token="old")
    server = KubernetesApi("weir")
    with pytest.raises(KubernetesError, match="Unauthorized; the credentials are rejected: renew"):
        server.version()
    server.close()


def test_an_invalid_manifest_is_reported_in_the_servers_words(server: KubernetesApi, cluster: Cluster) -> None:
    cluster.fail("POST", "/pods", 422, 'Pod "p" is invalid: spec.containers[0].image: Required value')
    with pytest.raises(KubernetesError, match="Required value"):
        server.create_pod(POD)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_asks_for_a_later_call_is_retried(server: KubernetesApi, cluster: Cluster, status: int) -> None:
    cluster.fail("POST", "/pods", status, "later", times=2, retry_after="0")
    assert server.create_pod(POD).name == "p-0-e1"
    assert [method for method, _ in cluster.requests] == ["POST"] * 3


def test_a_server_that_always_asks_for_a_later_call_counts_as_unreachable(
    server: KubernetesApi, cluster: Cluster
) -> None:
    cluster.fail("GET", "/version", 503, "etcd leader changed", times=99, retry_after="0")
    with pytest.raises(NotReached, match="answers 503: etcd leader changed"):
        server.version()


def test_an_unreachable_server_is_reported_by_name(server: KubernetesApi, cluster: Cluster) -> None:
    cluster.stop()
    with pytest.raises(NotReached, match=rf"API server http://127.0.0.1:{cluster.port} cannot be reached: .*refused"):
        server.version()


def test_a_server_that_does_not_answer_in_time_counts_as_unreachable(
    server: KubernetesApi, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "READ_S", 0.05)
    held = threading.Event()
    cluster.before = lambda: held.wait(20)  # type: ignore[method-assign]
    try:
        with pytest.raises(NotReached, match="timed out"):
            server.list_pods(SELECTOR)
    finally:
        held.set()


def test_an_answer_that_is_not_an_object_is_refused(server: KubernetesApi, cluster: Cluster) -> None:
    cluster.fail("GET", "/version", 200, "")
    cluster.refusals[0].raw = "<html>"
    with pytest.raises(KubernetesError, match="/version did not answer with the expected JSON object"):
        server.version()


# Watching


def names(events: Iterator[tuple[str, Pod]]) -> list[tuple[str, str]]:
    return [(kind, pod.name) for kind, pod in events]


def test_a_watch_yields_the_events_after_a_version_until_it_ends(server: KubernetesApi, cluster: Cluster) -> None:
    _, version = server.list_pods(SELECTOR)
    server.create_pod(POD)
    cluster.set_status("p-0-e1", phase="Running")
    cluster.remove("p-0-e1")
    server.create_pod({**POD, "metadata": {"name": "other", "labels": {}}})
    found = names(server.watch_pods(SELECTOR, version, 1))
    assert found == [("ADDED", "p-0-e1"), ("MODIFIED", "p-0-e1"), ("DELETED", "p-0-e1")]


def test_a_version_that_the_server_has_dropped_has_expired(server: KubernetesApi, cluster: Cluster) -> None:
    _, version = server.list_pods(SELECTOR)
    cluster.expire()
    with pytest.raises(Expired, match="too old resource version"):
        list(server.watch_pods(SELECTOR, version, 1))


def test_a_refused_watch_gives_the_reason(server: KubernetesApi, cluster: Cluster) -> None:
    cluster.fail("GET", "watch=true", 410, "gone")
    with pytest.raises(Expired, match="gone"):
        list(server.watch_pods(SELECTOR, "1", 1))


def test_a_connection_that_breaks_during_a_watch_is_reported(server: KubernetesApi, cluster: Cluster) -> None:
    server.create_pod(POD)
    events = server.watch_pods(SELECTOR, "100", 60)
    assert next(events)[0] == "ADDED"
    cluster.cut()
    with pytest.raises(NotReached, match="broke off"):
        next(events)


# Configuration


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the kubeconfig cannot be used: .*is empty"),
        ("{", "the kubeconfig cannot be used"),
        (
            json.dumps({"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []}),
            "cannot be used",
        ),
    ],
)
def test_an_unusable_kubeconfig_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(KubernetesError, match=message):
        KubernetesApi("weir")


def test_an_unknown_context_is_reported_by_name(cluster: Cluster) -> None:
    with pytest.raises(KubernetesError, match="context nowhere of the kubeconfig cannot be used"):
        KubernetesApi("weir", "nowhere")


def test_inside_a_cluster_the_service_account_is_used(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("TOKEN", "t-1"), ("CERT", "certificate")):
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setattr(api.incluster_config, f"SERVICE_{name}_FILENAME", str(path))
        monkeypatch.setattr(api.config.incluster_config, f"SERVICE_{name}_FILENAME", str(path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = api.configuration("")
    assert (found.host, found.auth_settings()["BearerToken"]["value"]) == ("https://10.0.0.1:443", "bearer t-1")
    assert api.configuration("here").host == f"http://127.0.0.1:{cluster.port}"
