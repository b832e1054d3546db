"""Changing pools and nodes, on the pages and over REST, as an operator and a viewer see them."""

import datetime as dt
import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.pages.fleet_pages.tests.test_pages import text_of
from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.policies.services import ensure_default_policy
from fleet import services
from fleet.control import autoscaler, nodes
from fleet.models import Instance, Node, Pool, PoolVersion, State
from fleet.redis import connect
from fleet.tests.world import World, document
from router.contract.redis import redis_keys
from router.tests.values import stored


@pytest.fixture
def pool(db: None, fake_kind: None, live_redis: object) -> Pool:
    """Two replicas with flavour 2, which had flavour 1 before; no process runs."""
    ensure_default_policy()
    nodes.record_heartbeat("local", timezone.now())
    for flavour in (1, 2):
        services.apply_fleet(document(2, flavour=flavour), "ada", reason=f"taste {flavour}")
    PoolVersion.objects.filter(number=1).update(proven_at=timezone.now())
    return Pool.objects.get()


def post(client: Client, path: str, **body: Any) -> Any:
    return client.post(f"/api/v1{path}", json.dumps(body), content_type="application/json")


# Over REST


def test_a_pool_is_scaled_with_a_reason(operator: Client, pool: Pool) -> None:
    answer = post(operator, "/pools/p/scale", replicas=5, reason="launch")
    assert (answer.status_code, answer.json()["replicas"], answer.json()["replicas_now"]) == (200, 5, 5)
    entry = AuditEntry.objects.get(action="pool.scale")
    assert (entry.reason, entry.before, entry.after) == ("launch", {"replicas": 2}, {"replicas": 5})
    assert post(operator, "/pools/p/scale", replicas=1_025).status_code == 422
    assert post(operator, "/pools/nobody/scale", replicas=1).status_code == 404


def test_one_call_rolls_a_pool_back_to_the_version_that_worked(operator: Client, pool: Pool) -> None:
    answer = post(operator, "/pools/p/rollback")
    assert answer.json()["engine"] == {"flavour": 1}
    assert AuditEntry.objects.get(action="pool.rollback").after["engine"] == {"flavour": 1}
    found = operator.get("/api/v1/pools/p/versions").json()
    assert [(one["number"], one["present"], one["reason"]) for one in found] == [
        (3, True, "back to version 1"),
        (2, False, "taste 2"),
        (1, False, "taste 1"),
    ]
    assert found[1]["changes"] == [{"path": "engine.flavour", "old": 1, "new": 2}]
    assert post(operator, "/pools/p/rollback", version=1).status_code == 409
    assert post(operator, "/pools/p/rollback", version=2, reason="after all").json()["engine"] == {"flavour": 2}
    assert "back to the configuration" in operator.get("/api/v1/pools/p/events").json()[0]["text"]


def test_a_halted_change_is_reported_and_continues_on_request(operator: Client, pool: Pool) -> None:
    Pool.objects.update(halted="p-0 failed")
    shown = operator.get("/api/v1/pools/p").json()
    assert (shown["halted"], shown["changing"]) == ("p-0 failed", True)
    assert post(operator, "/pools/p/resume").json()["halted"] == ""
    answer = post(operator, "/pools/p/resume", reason="again")
    assert (answer.status_code, answer.json()["detail"]) == (409, "p: no change is halted")


def test_an_instance_is_put_to_sleep_at_a_level(operator: Client, fleet: World) -> None:
    assert post(operator, "/instances/p-0/sleep", level=2).json()["desired"] == "asleep"
    fleet.until(lambda: fleet.one().asleep == 2)
    assert operator.get("/api/v1/instances/p-0").json()["asleep"] == 2
    assert post(operator, "/instances/p-0/sleep", level=3).status_code == 422
    assert post(operator, "/instances/p-1/wake").status_code == 409


def test_a_node_lists_its_resources_and_can_be_cordoned(operator: Client, pool: Pool) -> None:
    Instance.objects.create(pool=pool, name="p-0", ordinal=0, node="local", state=State.READY)
    (shown,) = operator.get("/api/v1/nodes").json()
    assert (shown["name"], shown["reports"], shown["instances"]) == ("local", True, ["p-0"])
    assert shown["inventory"]["cpus"] >= 1
    assert post(operator, "/nodes/local/drain", reason="new fan").json()["draining"] is True
    assert AuditEntry.objects.get(action="node.drain").reason == "new fan"
    assert post(operator, "/nodes/local/cordon").json()["draining"] is False
    assert post(operator, "/nodes/local/uncordon").json()["cordoned"] is False
    assert operator.get("/api/v1/nodes/mars").status_code == 404
    assert post(operator, "/nodes/mars/drain").status_code == 404


def gone(name: str = "gpu-9") -> Node:
    """Return a node that has not reported for ten minutes."""
    return Node.objects.create(name=name, last_seen=timezone.now() - dt.timedelta(minutes=10))


def test_a_lost_node_can_be_forgotten_over_rest_once_it_has_no_instances(operator: Client, pool: Pool) -> None:
    gone()
    row = Instance.objects.create(pool=pool, name="p-0", ordinal=0, node="gpu-9", state=State.UNREACHABLE)
    refused = post(operator, "/nodes/gpu-9/forget", reason="scrapped")
    assert (refused.status_code, "still holds p-0 (unreachable)" in refused.json()["detail"]) == (409, True)
    row.delete()
    assert post(operator, "/nodes/gpu-9/forget", reason="scrapped").status_code == 204
    assert AuditEntry.objects.get(action="node.forget").reason == "scrapped"
    (event,) = operator.get("/api/v1/nodes/gpu-9/events").json()
    assert (event["kind"], event["reason"], event["seconds"] >= 600) == ("forgotten", "scrapped", True)
    assert event["actor"] == AuditEntry.objects.get(action="node.forget").actor_name
    assert post(operator, "/nodes/gpu-9/forget").status_code == 404
    assert "alive" in post(operator, "/nodes/local/forget").json()["detail"]


def test_a_document_with_an_unknown_node_is_accepted_with_a_warning(operator: Client, pool: Pool) -> None:
    prepared = document(2, flavour=2)
    prepared["spec"]["pools"][0]["node"] = "mars"
    answer = operator.put("/api/v1/fleet", json.dumps(prepared), content_type="application/json")
    assert answer.status_code == 200
    assert "node mars is not known yet" in answer.json()["warnings"][0]


@pytest.mark.parametrize("path", ["pools/p/rollback", "pools/p/resume", "nodes/local/drain", "nodes/local/forget"])
def test_a_viewer_changes_no_pool_and_no_node_over_rest(viewer: Client, pool: Pool, path: str) -> None:
    assert post(viewer, f"/{path}").status_code == 403
    assert post(viewer, "/pools/p/scale", replicas=3).status_code == 403


# Pages


def test_the_page_of_a_pool_shows_its_versions_and_rolls_back(operator: Client, pool: Pool) -> None:
    said = text_of(operator.get("/fleet/pools/p/"))
    assert "v2 engine.flavour 1 → 2" in said
    assert "ada: taste 1 worked Roll back to v1" in said
    answer = operator.post("/fleet/pools/p/rollback", {"version": "1", "reason": "stale"}, follow=True)
    assert "p: back to version 1: stale, as version 3." in text_of(answer)
    again = operator.post("/fleet/pools/p/rollback", {"version": "1"}, follow=True)
    assert "p has the configuration of version 1 already" in text_of(again)


def test_the_page_of_a_pool_scales_it(operator: Client, pool: Pool) -> None:
    assert 'name="replicas" min="0" max="1024"' in operator.get("/fleet/pools/p/").content.decode()
    answer = operator.post("/fleet/pools/p/scale", {"replicas": "4", "reason": "x"}, follow=True)
    assert "p: scaled to 4 replicas." in text_of(answer)
    wrong = operator.post("/fleet/pools/p/scale", {"replicas": "many"}, follow=True)
    assert "replicas must be a whole number; allowed: 0 to 1,024" in text_of(wrong)
    assert operator.post("/fleet/pools/nobody/scale", {"replicas": "4"}).status_code == 404


def test_the_page_of_a_halted_pool_says_so_and_can_resume_it(operator: Client, pool: Pool) -> None:
    Pool.objects.update(halted="p-0 failed with the new configuration")
    said = text_of(operator.get("/fleet/pools/p/"))
    assert "The change of this pool is halted. p-0 failed with the new configuration" in said
    assert "rollout halted" in text_of(operator.get("/fleet/"))
    assert "p: the change continues." in text_of(operator.post("/fleet/pools/p/resume", follow=True))


def test_the_page_of_a_pool_says_what_the_autoscaler_would_do_and_why(operator: Client, pool: Pool) -> None:
    Pool.objects.update(autoscale={"target_queue": 2, "max": 8})
    value = {"pool": "p", "at": 1.0, "replicas": 2, "advised": 4, "why": "5 wait, the target is 2", "mode": "advisory"}
    connect().set(redis_keys.scaling_key("p"), stored({**value, "points": [], "changed_at": 0.0}))
    said = text_of(operator.get("/fleet/pools/p/"))
    assert "The autoscaler would scale from 2 to 4. 5 wait, the target is 2 (advisory)." in said
    assert "Autoscaler Mode advisory Minimum 1 instance Maximum 8 instances Queue 2 requests" in said
    assert operator.get("/api/v1/pools/p").json()["advice"]["advised"] == 4
    sides = {"prefills": 1, "advised_prefills": 1, "points": [], "changed_at": 0.0}
    connect().set(redis_keys.scaling_key("p"), stored({**value, **sides}))
    assert "would scale from 2 (1P1D) to 4 (1P3D)." in text_of(operator.get("/fleet/pools/p/"))
    assert operator.get("/api/v1/pools/p").json()["advice"]["advised_prefills"] == 1
    autoscaler.scale_step(timezone.now())
    assert "The autoscaler would keep 2." in text_of(operator.get("/fleet/pools/p/"))


def test_a_node_of_several_pools_has_no_ttft_chart_of_a_single_pool(operator: Client, pool: Pool) -> None:
    other = Pool.objects.create(name="q", model="m", kind="sim")
    Instance.objects.create(pool=pool, name="p-0", ordinal=0, node="local", state=State.READY)
    assert "TTFT p90 of the pool" in text_of(operator.get("/fleet/nodes/local/"))
    Instance.objects.create(pool=other, name="q-0", ordinal=0, node="local", state=State.READY)
    assert "TTFT p90" not in text_of(operator.get("/fleet/nodes/local/"))


def test_the_list_of_nodes_and_each_node_have_a_page(operator: Client, pool: Pool) -> None:
    assert "local schedulable" in text_of(operator.get("/fleet/nodes/"))
    assert "local schedulable" in text_of(operator.get("/fleet/"))
    said = text_of(operator.get("/fleet/nodes/local/"))
    assert "GPUs absent:" in said
    assert "No instances" in said
    answer = operator.post("/fleet/nodes/local/drain", {"reason": "new fan"}, follow=True)
    assert "Drain of local requested." in text_of(answer)
    assert "Status drained" in text_of(answer)
    assert "new fan" in text_of(answer)
    assert operator.get("/fleet/nodes/mars/").status_code == 404
    assert operator.post("/fleet/nodes/local/burn").status_code == 404
    Node.objects.update(last_seen=None)
    assert "local no heartbeat" in text_of(operator.get("/fleet/nodes/"))


def test_gpus_are_listed_with_kind_and_use(operator: Client, pool: Pool) -> None:
    memory = {"memory_bytes": 141 * 2**30, "memory_used_bytes": 120 * 2**30}
    sensors = {"power_w": 412.4, "power_limit_w": 700.0, "temperature_c": 54.0, "clock_mhz": 1980.0}
    gpus = [{"number": n, "name": "H200", "use": 0.45 + n / 10, **memory, **(sensors if n else {})} for n in range(2)]
    Node.objects.update(inventory={"gpus": gpus, "cpus": 4, "memory_bytes": 2**30})
    said = text_of(operator.get("/fleet/nodes/local/"))
    assert "2 × H200 (141 GiB)" in said
    first, second = "0: 45 %, 120.0 of 141.0 GiB", "1: 55 %, 120.0 of 141.0 GiB, 412 of 700 W, 54 °C, 1980 MHz"
    assert f"{first}; {second}" in said
    Instance.objects.create(pool=pool, name="p-0", ordinal=0, node="local", gpus=[1])
    own = text_of(operator.get("/fleet/instances/p-0/"))
    assert second in own
    assert first not in own


def test_a_viewer_is_referred_to_an_operator_and_changes_nothing(viewer: Client, pool: Pool) -> None:
    assert "requires the role operator" in text_of(viewer.get("/fleet/pools/p/"))
    assert "requires the role operator" in text_of(viewer.get("/fleet/nodes/local/"))
    for path in ("pools/p/scale", "pools/p/rollback", "pools/p/resume", "nodes/local/drain"):
        assert viewer.post(f"/fleet/{path}", {"replicas": "9"}).status_code == 403
    assert Pool.objects.get().replicas == 2


def test_the_page_for_documents_warns_of_an_unknown_node(operator: Client, pool: Pool) -> None:
    prepared = document(2, flavour=2)
    prepared["spec"]["pools"][0]["node"] = "mars"
    answer = operator.post("/fleet/apply", {"step": "plan", "document": json.dumps(prepared)})
    assert "Warnings pool p: node mars is not known yet" in text_of(answer)


def test_the_page_of_a_lost_node_says_so_and_forgets_it_when_its_name_is_typed(operator: Client, pool: Pool) -> None:
    gone()
    said = text_of(operator.get("/fleet/nodes/gpu-9/"))
    assert "No heartbeat for 10 min. It holds no instance." in said
    typo = operator.post("/fleet/nodes/gpu-9/forget", {"confirm": "gpu-8"}, follow=True)
    assert "Nothing was done: type gpu-9 to confirm" in text_of(typo)
    done = text_of(operator.post("/fleet/nodes/gpu-9/forget", {"confirm": "gpu-9", "reason": "sold"}, follow=True))
    assert "Node gpu-9 is forgotten." in done
    assert "gpu-9 forgotten forgotten by" in done, "the history outlives it"
    assert operator.post("/fleet/nodes/gpu-9/forget", {"confirm": "gpu-9"}).status_code == 404


def test_a_node_with_instances_says_why_it_cannot_be_forgotten(operator: Client, pool: Pool) -> None:
    gone()
    Instance.objects.create(pool=pool, name="p-0", ordinal=0, node="gpu-9", state=State.UNREACHABLE)
    assert "Not now: gpu-9 still holds p-0 (unreachable)." in text_of(operator.get("/fleet/nodes/gpu-9/"))
    answer = operator.post("/fleet/nodes/gpu-9/forget", {"confirm": "gpu-9"}, follow=True)
    assert "gpu-9 still holds p-0" in text_of(answer)
    assert "Forget the node" not in text_of(operator.get("/fleet/nodes/local/")), "it is alive"


def test_a_viewer_cannot_forget_a_node(viewer: Client, pool: Pool) -> None:
    gone()
    assert viewer.post("/fleet/nodes/gpu-9/forget", {"confirm": "gpu-9"}).status_code == 403
    assert Node.objects.filter(name="gpu-9").exists()
