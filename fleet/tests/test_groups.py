"""A group of instances that serve only together: routers send it nothing while one of them is missing."""

import pytest
import redis
from django.utils import timezone

from controlplane.fleet_ops.rows import instance_rows
from fleet.control.publish import publish_fleet
from fleet.kinds.option import build
from fleet.kinds.trtllm import TRTLLM
from fleet.models import Instance, Pool, State
from fleet.selectors import waits_for_group
from fleet.services import NotPossible, scale_pool
from fleet.snapshot import scale_of
from router.contract.redis import codec, redis_keys
from router.contract.redis.published import FleetValue

GROUP = {"dwdp_size": 2, "dwdp_groups": 2, "prefill_instances": 4, "chunked_prefill": False, "attention_dp": True}


@pytest.fixture
def pool(db: None, live_redis: redis.Redis) -> Pool:
    made = Pool.objects.create(name="r1", model="DeepSeek-R1", kind="trtllm", replicas=5, engine=GROUP)
    for ordinal in range(5):
        state = State.STARTING if ordinal == 1 else State.READY
        Instance.objects.create(pool=made, name=f"r1-{ordinal}", ordinal=ordinal, state=state, url="http://127.0.0.1:1")
    return made


def test_the_groups_are_the_servers_of_one_layout() -> None:
    spec = build(TRTLLM.spec, GROUP)
    assert [TRTLLM.group(spec, ordinal) for ordinal in range(5)] == [(0, 1), (0, 1), (2, 3), (2, 3), ()]
    assert TRTLLM.group(build(TRTLLM.spec, {}), 0) == ()


def test_an_incomplete_group_gets_no_requests_and_says_what_it_waits_for(pool: Pool, live_redis: redis.Redis) -> None:
    publish_fleet("r1")
    value = codec.decode(FleetValue, live_redis.get(redis_keys.fleet_key("r1")))
    assert value is not None
    assert [one.routable for one in value.instances] == [False, False, True, True, True]
    why = "its DWDP group serves only whole, not ready: r1-1"
    assert value.instances[0].reason == why
    assert [(row.routable, why in row.reason) for row in instance_rows(pool.instances.order_by("ordinal"))] == [
        (False, True), (False, False), (True, False), (True, False), (True, False),
    ]  # fmt: skip
    Instance.objects.filter(ordinal=1).update(state=State.READY)
    publish_fleet("r1")
    value = codec.decode(FleetValue, live_redis.get(redis_keys.fleet_key("r1")))
    assert value is not None
    assert all(one.routable for one in value.instances)


def test_a_group_without_an_instance_that_was_scaled_away_waits_for_it(pool: Pool) -> None:
    Instance.objects.filter(ordinal=3).delete()
    assert waits_for_group(Instance.objects.get(ordinal=2)).endswith("not ready: r1-3")


def test_a_pool_is_scaled_to_whole_groups_only(pool: Pool) -> None:
    with pytest.raises(NotPossible) as refused:
        scale_pool("r1", 3, "ada")
    assert str(refused.value).startswith("r1: replicas: 3 would split a group")
    assert str(refused.value).endswith("allowed: 2 or 4")
    assert scale_pool("r1", 2, "ada").replicas == 2
    pool.replicas = 3  # by a schedule, or stored before it was refused
    scale = scale_of(pool, timezone.now())
    assert (scale.replicas, scale.because) == (2, "more would split a group, which serves only whole")


@pytest.mark.parametrize("changes", [{"kind": "gone"}, {"engine": {"unknown": 1}}, {"engine": {}}])
def test_a_pool_whose_options_are_not_known_has_no_groups(pool: Pool, changes: dict[str, object]) -> None:
    Pool.objects.update(**changes)
    assert waits_for_group(Instance.objects.get(ordinal=0)) == ""
