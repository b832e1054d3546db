"""A namespace as a node, order by order: what it creates, what it observes, and what it does when a call fails."""

import datetime as dt
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from fleet.control import launchers, node_agent, nodes
from fleet.kinds.resources import PodsOfNode
from fleet.kubernetes import pods as launched
from fleet.kubernetes.pods import Pods
from fleet.models import DesiredState, Instance, Node, Pool, State
from fleet.node import logs
from fleet.node.launcher import ShutdownReport
from fleet.plan.placement import refusal
from fleet.snapshot import node_views, observed_of
from fleet.spec.sections import Placement
from fleet.tests.cluster import Cluster

NODE = "k8s"
BORN = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
pytestmark = pytest.mark.usefixtures("db", "live_redis", "on_kubernetes")


@pytest.fixture
def cluster(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters()


@pytest.fixture
def here(cluster: Cluster) -> Iterator[Pods]:
    prepared = launchers.current()
    assert isinstance(prepared, Pods)
    yield prepared
    cluster.cut()


def row(epoch: int = 1, state: State = State.STARTING, **fields: Any) -> Instance:
    pool, _ = Pool.objects.get_or_create(
        name="p", defaults={"model": "m", "kind": "sim", "node": NODE, "created_at": BORN}
    )
    config = {"model": "m", "kind": "sim", "engine": {}}
    since = timezone.now() - dt.timedelta(seconds=fields.pop("age_s", 0))
    values = {"node": NODE, "epoch": epoch, "state": state, "config": config, "since": since, **fields}
    prepared, _ = Instance.objects.update_or_create(name="p-0", defaults={"pool": pool, "ordinal": 0, **values})
    return prepared


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def known(here: Pods, name: str, phase: str) -> Callable[[], bool]:
    def seen() -> bool:
        pod = here.mirror(NODE).get(name)
        return pod is not None and pod.status.phase == phase

    return seen


def started(epoch: int = 1) -> Instance:
    row(epoch)
    assert node_agent.start_instance("p-0", epoch) is True
    return Instance.objects.get()


# Starting


def test_a_start_creates_a_pod_and_records_its_name(here: Pods, cluster: Cluster) -> None:
    prepared = started()
    assert (prepared.state, prepared.pod, prepared.pid, prepared.url) == (State.LOADING, "p-0-e1", None, "")
    assert prepared.reason == "started as Pod p-0-e1"
    assert set(cluster.pods()) == {"p-0-e1"}
    assert here.status(prepared).alive is True
    assert observed_of(prepared, None).allowance_s > 0


def test_an_order_that_arrives_twice_adopts_the_pod_of_the_first(here: Pods, cluster: Cluster) -> None:
    uid = cluster_uid(cluster, started())
    row(1, pod="")  # the first worker died before it recorded the Pod
    assert node_agent.start_instance("p-0", 1) is True
    assert cluster_uid(cluster, Instance.objects.get()) == uid


def cluster_uid(cluster: Cluster, instance: Instance) -> str:
    return str(cluster.pods()[instance.pod]["metadata"]["uid"])


def test_pods_of_earlier_starts_are_deleted_before_a_new_one_is_created(here: Pods, cluster: Cluster) -> None:
    started(1)
    row(2, pod="")
    assert node_agent.start_instance("p-0", 2) is True
    assert set(cluster.pods()) == {"p-0-e2"}


def test_a_start_waits_for_an_earlier_pod_that_ends_slowly(
    here: Pods, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launched, "CLEAR_S", 0.0)
    started(1)
    scheduled(cluster, "p-0-e1")
    row(2, pod="")
    assert node_agent.start_instance("p-0", 2) is False
    waiting = Instance.objects.get()
    assert (waiting.state, waiting.failures) == (State.STARTING, 0)
    assert waiting.reason == "waits for the Pod p-0-e1 of an earlier start to end"
    cluster.remove("p-0-e1")
    assert node_agent.start_instance("p-0", 2) is True


def scheduled(cluster: Cluster, name: str) -> None:
    """Put the Pod on a machine, where only a kubelet can end it."""
    pod = cluster.pods()[name]
    cluster.put("pods", name, {**pod, "spec": {**pod["spec"], "nodeName": "m1"}})
    cluster.container(name, "Running", running={})


def test_an_earlier_pod_on_a_lost_machine_does_not_block_a_start(here: Pods, cluster: Cluster) -> None:
    started(1)
    scheduled(cluster, "p-0-e1")
    pod = cluster.pods()["p-0-e1"]
    cluster.put("pods", "p-0-e1", {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    row(2, pod="")
    assert node_agent.start_instance("p-0", 2) is True


def test_a_database_that_is_behind_the_cluster_catches_up(here: Pods, cluster: Cluster) -> None:
    started(5)
    row(2, pod="")
    assert node_agent.start_instance("p-0", 2) is False
    behind = Instance.objects.get()
    assert (behind.epoch, behind.state) == (5, State.STOPPED)
    assert "has already started epoch 5 of it" in behind.reason


def test_a_pod_of_a_former_pool_of_the_same_name_is_not_adopted(here: Pods, cluster: Cluster) -> None:
    uid = cluster_uid(cluster, started(1))
    Pool.objects.update(created_at=BORN + dt.timedelta(days=1))
    row(1, pod="")
    assert node_agent.start_instance("p-0", 1) is True
    assert cluster_uid(cluster, Instance.objects.get()) != uid


def test_a_foreign_pod_of_the_same_name_is_left_alone(here: Pods, cluster: Cluster) -> None:
    cluster.create("pods", {"metadata": {"name": "p-0-e1"}, "spec": {}})
    row(1)
    assert node_agent.start_instance("p-0", 1) is False
    failed = Instance.objects.get()
    assert (failed.state, failed.failures) == (State.FAILED, 1)
    assert "a Pod p-0-e1 of another fleet exists" in failed.reason


@pytest.mark.parametrize(
    ("status", "message", "state", "words"),
    [
        (403, 'pods "p-0-e1" is forbidden: exceeded quota: q', State.STARTING, "waits for capacity in the namespace"),
        (
            403,
            'pods is forbidden: cannot create resource "pods"',
            State.FAILED,
            "could not be launched: pods is forbidden",
        ),
        (422, "spec.containers[0].image: Required value", State.FAILED, "could not be launched: spec.containers[0]"),
        (503, "leader changed", State.STARTING, "the API server answers 503"),
    ],
)
def test_transient_errors_are_retried_and_others_give_their_reason(
    here: Pods, cluster: Cluster, status: int, message: str, state: State, words: str
) -> None:
    cluster.fail("POST", "/pods", status, message, times=9, retry_after="0")
    row(1)
    assert node_agent.start_instance("p-0", 1) is False
    found = Instance.objects.get()
    assert (found.state, found.failures) == (state, int(state == State.FAILED))
    assert found.reason.startswith(words)


def test_if_its_secret_cannot_be_created_the_pod_is_deleted(here: Pods, cluster: Cluster) -> None:
    cluster.forbidden.add(("create", "secrets"))
    config = {"model": "m", "kind": "vllm", "engine": {"environment": {"HF_TOKEN": "x"}}}
    row(1, config=config)
    assert node_agent.start_instance("p-0", 1) is False
    assert "secrets is forbidden" in Instance.objects.get().reason
    assert cluster.pods() == {}
    cluster.forbidden.clear()
    row(2, config=config)
    assert node_agent.start_instance("p-0", 2) is True
    assert cluster.objects["secrets", "p-0-e2"]["stringData"] == {"env.HF_TOKEN": "x"}
    cluster.remove("p-0-e2")
    assert ("secrets", "p-0-e2") not in cluster.objects


def test_a_start_that_was_superseded_is_undone(here: Pods, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Pods.start

    def slowly(self: Pods, instance: Instance) -> Any:
        prepared = start(self, instance)
        Instance.objects.update(epoch=9)
        return prepared

    monkeypatch.setattr(Pods, "start", slowly)
    row(1)
    assert node_agent.start_instance("p-0", 1) is False
    assert cluster.pods() == {}


# Observing


def test_the_address_of_a_pod_is_recorded_once_it_has_one(here: Pods, cluster: Cluster) -> None:
    started()
    here.refresh(NODE)
    assert Instance.objects.get().url == ""
    cluster.set_status("p-0-e1", phase="Running", podIP="10.1.2.3")
    until(known(here, "p-0-e1", "Running"))
    here.refresh(NODE)
    found = Instance.objects.get()
    assert (found.url, found.wire["events"]) == ("http://10.1.2.3:8000", "http://10.1.2.3:8000")


@pytest.mark.slow
def test_a_missing_pod_is_dead_but_an_unreachable_pod_is_not(here: Pods, cluster: Cluster) -> None:
    started()
    prepared = row(1, State.READY, pod="p-0-e1", age_s=100)
    cluster.set_status("p-0-e1", phase="Running")
    until(known(here, "p-0-e1", "Running"))
    cluster.stop()
    until(lambda: here.mirror(NODE).trouble != "")
    here.mirror(NODE).forget("p-0-e1")
    assert here.status(prepared).alive is True
    assert f"http://127.0.0.1:{cluster.port}" in (here.live_inventory(here.inventory()).trouble or "")
    cluster.objects.clear()
    cluster.oldest = 10**9  # the server's history from before it became unreachable is lost
    cluster.start()
    until(lambda: here.mirror(NODE).trouble == "")
    found = here.status(prepared)
    assert (found.alive, found.end_text) == (False, "its Pod is gone")
    assert here.failure_cause(prepared) == "it was deleted from outside, or with its machine"


def test_a_node_without_its_api_server_starts_nothing(here: Pods, cluster: Cluster) -> None:
    until(lambda: here.mirror(NODE).trouble == "")
    cluster.stop()
    until(lambda: here.mirror(NODE).trouble != "")
    nodes.record_heartbeat(NODE, timezone.now())
    (view,) = node_views(timezone.now())
    assert refusal(Placement(), view).startswith("cannot start instances: the ")


def test_the_last_lines_of_a_pods_log_are_kept(here: Pods, cluster: Cluster) -> None:
    prepared = started()
    cluster.logs["p-0-e1"] = "loading\nValueError: bad option --x\n"
    cluster.container("p-0-e1", "Failed", terminated={"exitCode": 2, "reason": "Error"})
    until(known(here, "p-0-e1", "Failed"))
    assert here.status(prepared).alive is False
    assert here.failure_cause(prepared) == "exit status 2: its log ends with: ValueError: bad option --x"
    assert logs.of_latest_start(logs.tail(logs.path_of("p-0"), 50)) == ["loading", "ValueError: bad option --x"]


# Stopping


@pytest.mark.parametrize(("kill", "grace_s"), [(False, 5), (True, 1)])
def test_a_stop_deletes_its_pod_with_the_kinds_grace_period_and_a_kill_at_once(
    here: Pods, cluster: Cluster, kill: bool, grace_s: int
) -> None:
    started()
    scheduled(cluster, "p-0-e1")
    row(1, State.STOPPING, pod="p-0-e1")
    before = time.time()
    assert node_agent.signal_instance("p-0", 1, kill=kill) is True
    deadline = dt.datetime.fromisoformat(cluster.pods()["p-0-e1"]["metadata"]["deletionTimestamp"]).timestamp()
    assert before + grace_s - 1 <= deadline <= time.time() + grace_s
    cluster.remove("p-0-e1")
    assert node_agent.signal_instance("p-0", 1, kill=kill) is False
    assert here.mirror(NODE).get("p-0-e1") is None


def test_the_fence_ends_stray_pods_and_nothing_else(here: Pods, cluster: Cluster) -> None:
    started(1)
    for name, labels in (("stray", {"app.kubernetes.io/managed-by": "weir", "weir/node": NODE}), ("theirs", {})):
        cluster.create("pods", {"metadata": {"name": name, "labels": labels}, "spec": {}})
    assert here.fence(NODE) == [""]
    assert set(cluster.pods()) == {"p-0-e1", "theirs"}
    row(1, State.FAILED)
    assert here.fence(NODE) == ["p-0"]
    assert set(cluster.pods()) == {"theirs"}


def test_a_fence_that_cannot_list_pods_ends_nothing(here: Pods, cluster: Cluster) -> None:
    cluster.forbidden.add(("list", "pods"))
    assert here.fence(NODE) == []


# Stopping everything


def test_everything_on_the_node_ends_and_the_desired_state_stays(
    here: Pods, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    started()
    cluster.create("pods", {"metadata": {"name": "theirs", "labels": {}}, "spec": {}})
    call_command("fleet_stop_all", "--node", NODE)
    assert capsys.readouterr().out == "1 stopped: p-0\n"
    assert set(cluster.pods()) == {"theirs"}
    found = Instance.objects.get()
    assert (found.state, found.pod, found.desired) == (State.STOPPED, "", DesiredState.RUNNING)


def test_a_pod_that_no_record_names_ends_with_the_others(here: Pods, cluster: Cluster) -> None:
    started()
    row(1, pod="")  # the worker that started it died before it recorded the Pod
    assert here.end_all(NODE, 5).names == ("p-0",)
    assert cluster.pods() == {}


def test_pods_that_cannot_be_deleted_for_lack_of_a_server_are_named(here: Pods, cluster: Cluster) -> None:
    prepared = started()
    cluster.stop()
    with pytest.raises(
        CommandError, match=r"^p-0 was not ended: its Pod p-0-e1 may still run: the API server .* cannot"
    ):
        call_command("fleet_stop_all", "--node", NODE)
    assert Instance.objects.get().state == prepared.state
    cluster.start()
    assert set(cluster.pods()) == {"p-0-e1"}


def test_a_pod_that_may_not_be_deleted_is_named(here: Pods, cluster: Cluster) -> None:
    started()
    cluster.forbidden.add(("delete", "pods"))
    ended = here.end_all(NODE, 5)
    assert (ended.names, list(ended.left)) == ((), ["p-0"])
    assert "pods is forbidden" in ended.left["p-0"]


def test_a_pod_that_exceeds_its_grace_period_is_named(
    here: Pods, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launched, "CLEAR_S", 0.0)
    started()
    scheduled(cluster, "p-0-e1")
    ended = here.end_all(NODE, 0)
    assert ended.left == {"p-0": "its Pod p-0-e1 was deleted but is still there"}


def test_a_pod_that_has_ended_already_is_not_ended_again(here: Pods, cluster: Cluster) -> None:
    started()
    cluster.container("p-0-e1", "Failed", terminated={"exitCode": 2, "reason": "Error"})
    assert here.end_all(NODE, 5) == ShutdownReport((), {})
    assert set(cluster.pods()) == {"p-0-e1"}


# Capacity


MACHINE = {
    "metadata": {"labels": {"nvidia.com/gpu.product": "H200", "nvidia.com/gpu.memory": "143771"}},
    "spec": {},
    "status": {"allocatable": {"cpu": "31500m", "memory": "256Gi", "nvidia.com/gpu": "2"}},
}


def test_a_node_reports_the_capacity_of_its_machines(here: Pods, cluster: Cluster) -> None:
    cluster.nodes = [MACHINE, MACHINE, {**MACHINE, "spec": {"unschedulable": True}}]
    found = here.inventory()
    assert (found.cpus, found.memory_bytes, found.machines) == (63.0, 2 * 256 * 2**30, 2)
    assert [(gpu.number, gpu.name) for gpu in found.gpus or ()] == [(n, "H200") for n in range(4)]
    assert found.system == "Kubernetes v1.37.0, namespace weir"


def test_a_node_publishes_the_shape_of_its_pods_for_pages(here: Pods, cluster: Cluster) -> None:
    assert here.inventory().pods == PodsOfNode("weir", {}, {})


def test_a_quota_takes_precedence_over_machines(here: Pods, cluster: Cluster) -> None:
    cluster.nodes = [MACHINE]
    cluster.quotas = [{"spec": {"hard": {"requests.cpu": "8", "requests.nvidia.com/gpu": "1"}}}]
    found = here.inventory()
    assert (found.cpus, found.memory_bytes, len(found.gpus or ())) == (8.0, 256 * 2**30, 1)


def test_resources_that_may_not_be_listed_are_unknown(here: Pods, cluster: Cluster) -> None:
    cluster.forbidden |= {("list", "nodes"), ("list", "resourcequotas")}
    found = here.inventory()
    assert (found.cpus, found.gpus) == (None, None)
    assert "no right to list the machines" in (found.gpus_why or "")
    nodes.record_heartbeat(NODE, timezone.now())
    assert Node.objects.get().inventory["trouble"] == ""
