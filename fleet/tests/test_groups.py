"""A group of instances can serve only together: routers send it nothing while one of them is missing."""

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_ops.rows import instance_rows
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import Actor
from controlplane.testing import api_caller
from fleet.control.publish import publish_fleet
from fleet.kinds.options.option import build
from fleet.kinds.trtllm.trtllm import TRTLLM
from fleet.models import Instance, Node, Pool, State
from fleet.selectors import waits_for_group
from fleet.services import NotPossible, scale_pool
from fleet.snapshot import scale_of
from router.contract.redis import codec, redis_keys
from router.contract.redis.published import FleetValue

ADA = Actor("user", "ada")
GROUP = {"dwdp_size": 2, "dwdp_groups": 2, "prefill_instances": 4, "chunked_prefill": False, "attention_dp": True}


@pytest.fixture
def pool(db: None, live_redis: redis.Redis) -> Pool:
    made = Pool.objects.create(name="r1", model="DeepSeek-R1", kind="trtllm", replicas=5, engine=GROUP)
    for ordinal in range(5):
        state = State.STARTING if ordinal == 1 else State.READY
        Instance.objects.create(pool=made, name=f"r1-{ordinal}", ordinal=ordinal, state=state, url="http://127.0.0.1:1")
    return made


def test_a_group_consists_of_the_servers_of_one_layout() -> None:
    spec = build(TRTLLM.spec, GROUP)
    assert [TRTLLM.group(spec, ordinal) for ordinal in range(5)] == [(0, 1), (0, 1), (2, 3), (2, 3), ()]
    assert TRTLLM.group(build(TRTLLM.spec, {}), 0) == ()


def test_an_incomplete_group_gets_no_requests_and_names_its_missing_servers(
    pool: Pool, live_redis: redis.Redis
) -> None:
    publish_fleet("r1")
    value = codec.decode(FleetValue, live_redis.get(redis_keys.fleet_key("r1")))
    assert value is not None
    assert [one.routable for one in value.instances] == [False, False, True, True, True]
    why = "its group serves only whole, not ready: r1-1"
    assert value.instances[0].reason == why
    assert [(row.routable, why in row.reason) for row in instance_rows(pool.instances.order_by("ordinal"))] == [
        (False, True), (False, False), (True, False), (True, False), (True, False),
    ]  # fmt: skip
    Instance.objects.filter(ordinal=1).update(state=State.READY)
    publish_fleet("r1")
    value = codec.decode(FleetValue, live_redis.get(redis_keys.fleet_key("r1")))
    assert value is not None
    assert all(one.routable for one in value.instances)


def test_a_group_waits_for_an_instance_that_was_scaled_down(pool: Pool) -> None:
    Instance.objects.filter(ordinal=3).delete()
    assert waits_for_group(Instance.objects.get(ordinal=2)).endswith("not ready: r1-3")


def test_a_pool_is_scaled_only_to_whole_groups(pool: Pool) -> None:
    with pytest.raises(NotPossible) as refused:
        scale_pool("r1", 3, "ada")
    assert str(refused.value).startswith("r1: replicas: 3 would split a group")
    assert str(refused.value).endswith("allowed: 2 or 4")
    assert scale_pool("r1", 2, "ada").replicas == 2
    pool.replicas = 3  # set by a schedule, or stored before such numbers were refused
    scale = scale_of(pool, timezone.now())
    assert (scale.replicas, scale.because) == (2, "more would split a group, which serves only whole")


@pytest.mark.parametrize("verb", ["drain", "stop", "restart"])
def test_a_single_server_of_a_group_cannot_be_taken_out(pool: Pool, verb: str) -> None:
    with pytest.raises(NotPossible) as refused:
        actions.act(verb, "r1-2", ADA, "")
    why = f'its group, r1-3: {verb} the whole group, over REST with "group": true'
    assert str(refused.value) == f"r1-2 serves only together with the others of {why}"
    assert not pool.instances.exclude(desired="running", restart_asked="").exists()
    done = actions.act(verb, "r1-2", ADA, "fan", group=True)
    assert [one.name for one in done] == ["r1-2", "r1-3"]
    assert AuditEntry.objects.filter(action=f"instance.{verb}", reason="fan").count() == 2
    assert [one.name for one in actions.act(verb, "r1-4", ADA, "")] == ["r1-4"]


def test_a_node_with_part_of_a_group_is_drained_once_the_group_is_stopped(
    pool: Pool, otto_client: Client, otto: User
) -> None:
    for name in ("gpu-1", "gpu-2"):
        Node.objects.create(name=name, hostname=name)
    pool.instances.filter(ordinal__in=(0, 1, 2)).update(node="gpu-1")
    pool.instances.filter(ordinal__in=(3, 4)).update(node="gpu-2")
    why = "r1-2 serves only together with the others of its group, of which r1-3 on gpu-2: stop the whole group"
    refused = api_caller(otto).post("/nodes/gpu-1/drain", {})
    assert (refused.status_code, why in refused.json()["detail"]) == (409, True)
    assert why in otto_client.post("/fleet/nodes/gpu-1/drain", follow=True).content.decode()
    assert not Node.objects.filter(draining=True).exists()
    pool.instances.filter(ordinal__in=(2, 3)).update(state=State.STOPPED, desired="stopped")
    assert api_caller(otto).post("/nodes/gpu-1/drain", {}).json()["draining"]
    pool.instances.filter(ordinal=1).update(node="gpu-2", state=State.FAILED)
    assert api_caller(otto).post("/nodes/gpu-2/drain", {}).json()["draining"]


def test_an_action_that_completes_a_group_is_allowed_on_a_single_server(pool: Pool) -> None:
    Instance.objects.filter(ordinal=3).update(desired="stopped", state=State.STOPPED)  # stopped before that was refused
    actions.act("stop", "r1-2", ADA, "")
    with pytest.raises(NotPossible, match="start the whole group"):
        actions.act("start", "r1-2", ADA, "")
    actions.act("start", "r1-2", ADA, "", group=True)
    assert set(pool.instances.values_list("desired", flat=True)) == {"running"}


def test_the_page_of_a_server_offers_actions_on_the_group_only(pool: Pool, otto_client: Client, otto: User) -> None:
    page = otto_client.get("/fleet/instances/r1-2/").content.decode()
    assert '<input type="hidden" name="group" value="1">' in page
    assert "Stop group" in page
    assert "r1-2, r1-3: Drains, then stops the process" in page
    assert "Stop group" not in otto_client.get("/fleet/instances/r1-4/").content.decode()
    said = otto_client.post("/fleet/instances/r1-2/stop", follow=True).content.decode()
    assert "stop the whole group" in said
    said = otto_client.post("/fleet/instances/r1-2/stop", {"group": "1"}, follow=True).content.decode()
    assert "Stop of r1-2, r1-3 requested." in said
    rest = api_caller(otto)
    refused = rest.post("/instances/r1-2/start", {})
    assert (refused.status_code, "r1-3" in refused.json()["detail"]) == (409, True)
    assert rest.post("/instances/r1-2/start", {"group": True}).status_code == 200
    assert not pool.instances.exclude(desired="running").exists()


@pytest.mark.parametrize("changes", [{"kind": "gone"}, {"engine": {"unknown": 1}}, {"engine": {}}])
def test_a_pool_with_unknown_options_has_no_groups(pool: Pool, changes: dict[str, object]) -> None:
    Pool.objects.update(**changes)
    assert waits_for_group(Instance.objects.get(ordinal=0)) == ""
