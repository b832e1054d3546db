"""A fleet document becomes Pods and back by the usual plan, with a stand-in API server that runs the commands."""

from collections.abc import Callable, Iterator

import pytest
from django.utils import timezone

from fleet import selectors, services
from fleet.control import nodes
from fleet.control.reconciler import reconcile_step
from fleet.models import Node, State
from fleet.tests.cluster import Cluster
from fleet.tests.world import World, deliver, roll_back

NODE = "cluster"


class ClusterWorld(World):
    """A World whose node is a namespace; it waits longer, since real engines start slowly on a busy machine."""

    def until(self, condition: Callable[[], bool], limit_s: float = 200.0) -> None:
        super().until(condition, limit_s)

    def tick(self) -> None:
        now = timezone.now()
        self.scraper.step(now, NODE)
        reconcile_step(now, deliver, roll_back)


@pytest.fixture
def cluster(clusters: Callable[..., Cluster]) -> Cluster:
    return clusters(kubelet=True)


@pytest.fixture
def there(cluster: Cluster, on_kubernetes: None, db: None, live_redis: object) -> Iterator[ClusterWorld]:
    nodes.record_heartbeat(NODE, timezone.now())
    prepared = ClusterWorld()
    yield prepared
    prepared.close()


def document(replicas: int = 1, **engine: object) -> dict[str, object]:
    pool = {"name": "p", "model": "m", "kind": "sim", "replicas": replicas, "node": NODE, "engine": engine}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "t"}, "spec": {"pools": [pool]}}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pod_is_started_routed_to_killed_replaced_drained_and_deleted(there: ClusterWorld, cluster: Cluster) -> None:
    services.apply_fleet(document(1), "ada")
    there.until_ready(1)
    first = there.one()
    assert (first.pod, first.pid) == ("p-0-e1", None)
    assert there.published()["p-0"]["routable"] is True
    assert there.published()["p-0"]["url"] == first.url == f"http://{cluster.pods()['p-0-e1']['status']['podIP']}:8000"
    assert there.published()["p-0"]["events"] == first.url
    assert "$(WEIR_POD_IP)" in first.command
    kubelet = cluster._kubelet
    assert kubelet is not None
    kubelet.kill("p-0-e1")
    there.until(there.is_in(State.FAILED))
    assert "its Pod ended while ready: exit status 137" in there.one().reason
    assert there.published()["p-0"]["routable"] is False
    there.age(60)
    there.until_ready(1)
    assert (there.one().pod, set(cluster.pods())) == ("p-0-e2", {"p-0-e2"})
    services.apply_fleet(document(1, seed=7), "ada")
    there.until(lambda: there.one().pod == "p-0-e3")
    there.until_ready(1)
    services.apply_fleet(document(0), "ada")
    there.until(lambda: not selectors.instances().exists())
    assert cluster.pods() == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_while_the_api_server_is_unreachable_engines_keep_serving_and_none_is_started_twice(
    there: ClusterWorld, cluster: Cluster
) -> None:
    services.apply_fleet(document(1), "ada")
    there.until_ready(1)
    cluster.stop()
    there.until(lambda: Node.objects.get().inventory["trouble"] != "")
    assert there.published()["p-0"]["routable"] is True
    services.apply_fleet(document(2), "ada")
    there.until(lambda: f"node {NODE} cannot start instances" in there.states().get("p-1", ""))
    kubelet = cluster._kubelet
    assert kubelet is not None
    kubelet.kill("p-0-e1")
    there.until(there.is_in(State.UNREACHABLE))
    there.age(15)
    there.until(there.is_in(State.STOPPING))  # the stop is requested, but the API server is unreachable
    cluster.start()
    there.until(there.is_in(State.FAILED))
    there.age(60)
    there.until_ready(2)
    assert set(cluster.pods()) == {"p-0-e2", "p-1-e1"}
    assert [method for method, path in cluster.requests if method == "POST" and path.endswith("/pods")] == ["POST"] * 3
