"""The values that a delivery publishes for routers, and their repair in Redis."""

from typing import Any

import pytest
from django.db import connection

from controlplane.traffic.deliveries import services
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.rollout import held_back, rollout, split_document
from controlplane.traffic.deliveries.states import State
from controlplane.traffic.deliveries.tests.conftest import CANARY, FULL, OTTO, SHADOW, WHY, proposed
from controlplane.traffic.policies import publication
from controlplane.traffic.policies import services as publishing
from fleet.models import Pool
from fleet.tests.interleaved import between_reading_and_writing
from router.contract.redis import codec, redis_keys
from router.contract.redis.published import FullRollout, PolicyValue, SplitRollout
from router.contract.redis.router_status import RouterStatus, ServedPool
from router.policy.schema import document as documents

SWITCHBACK = {"mode": "switchback", "block_s": 60, "washout_s": 10, "pairs": 4}


def at(delivery: Delivery, state: str, **fields: Any) -> Delivery:
    Delivery.objects.filter(pk=delivery.pk).update(state=state, **{"generation": 4, **fields})
    delivery.refresh_from_db()
    return delivery


def in_redis(live_redis: Any, pool: str = "demo") -> PolicyValue:
    value = codec.decode(PolicyValue, live_redis.get(redis_keys.policy_key(pool)))
    assert value is not None
    return value


def test_a_policy_without_a_delivery_has_no_split() -> None:
    assert rollout(None, "demo") == FullRollout()


@pytest.mark.parametrize("state", [State.PROPOSED, State.READY, State.BAKING, State.ABORTED, State.DELIVERED])
def test_outside_its_steps_a_delivery_splits_nothing(delivery, state):
    assert rollout(at(delivery, state), "demo") == FullRollout(generation=4)


def test_a_step_splits_only_the_pools_of_the_plan(redis_away, policy, pool):
    Pool.objects.create(name="night", model="m", kind="sim", policy=policy.name)
    made = at(proposed(policy, pools=["demo"]), State.STEP, step=1, share=0.05, slow={"warm": [1.0, 0.5, 0.7]})
    split = rollout(made, "demo")
    assert isinstance(split, SplitRollout)
    assert (split.delivery, split.generation, split.salt, split.share) == (made.pk, 4, made.salt, 0.05)
    assert (split.slow, split.candidate.version) == ({"warm": (1.0, 0.5, 0.7)}, 2)
    assert rollout(made, "night") == FullRollout(generation=4)


@pytest.mark.parametrize(("step", "warmup_s"), [(0, 0.0), (1, 10.0), (2, 10.0), (3, 0.0)])
def test_requests_right_after_a_change_of_shares_are_not_counted(redis_away, policy, pool, step, warmup_s):
    made = at(proposed(policy, SHADOW, CANARY, SWITCHBACK, FULL), State.STEP, step=step)
    assert rollout(made, "demo").warmup_s == warmup_s


def test_parameters_of_the_pool_come_from_live_and_all_others_from_the_candidate() -> None:
    live = documents.default()
    changes = {
        "classes.heavy_new_tokens": 9000,
        "admission.share_heavy": 2,
        "admission.max_queue_warm": 7,
        "failure.breaker_failures": 9,
        "affinity.ttl_s": 77,
        "affinity.break_ratio": 3.0,
    }
    candidate = documents.apply_overrides(live, changes)
    held = {change.path for change in held_back(live, candidate)}
    assert held == set(changes) - {"classes.heavy_new_tokens", "affinity.break_ratio"}
    sent = split_document(live, candidate)
    assert sent["classes"]["heavy_new_tokens"] == 9000
    assert sent["affinity"] == {**live["affinity"], "break_ratio": 3.0}
    documents.parse(sent)


def test_every_group_of_parameters_of_the_pool_exists() -> None:
    from router.policy.schema.parameters import OF_THE_POOL, PARAMETERS

    for prefix in OF_THE_POOL:
        assert any(path.startswith(prefix) for path in PARAMETERS), prefix


def test_the_sha256_is_of_the_document_that_is_sent(delivery):
    split = rollout(at(delivery, State.STEP, step=1), "demo")
    assert split.candidate.sha256 == documents.sha256(split.candidate.document)


# Redis


@pytest.fixture
def running(live_redis: Any, pool: Any, policy: Any) -> Delivery:
    publishing.republish_missing()
    return at(services.start(proposed(policy), OTTO), State.STEP, step=1, share=0.05, generation=2)


def test_a_transition_writes_the_split_beside_the_live_version(live_redis, pool, policy):
    services.start(proposed(policy), OTTO)
    value = in_redis(live_redis)
    assert (value.version, value.rollout.generation, value.rollout.share) == (1, 1, 0.0)
    assert value.rollout.candidate.version == 2


def test_a_transition_that_changes_nothing_for_routers_writes_nothing(running, live_redis):
    at(running, State.HOLDING, share=0.0)
    publication.tell(running.policy)
    before = in_redis(live_redis).published_at
    services.pause(running, OTTO)
    assert in_redis(live_redis).published_at == before


def test_a_pause_writes_a_split_without_a_share(running, live_redis):
    services.pause(running, OTTO)
    rollout = in_redis(live_redis).rollout
    assert (rollout.share, rollout.shadow, rollout.generation) == (0.0, 0.0, running.generation)


def test_an_abort_writes_the_live_version_for_everybody(running, live_redis):
    services.abort(running, OTTO)
    assert (in_redis(live_redis).version, in_redis(live_redis).rollout) == (1, FullRollout(generation=3))


def test_a_promotion_writes_the_candidate_for_everybody(running, live_redis):
    services.advance(at(running, State.WAITING, step=2, share=0.25), OTTO, WHY)
    assert (in_redis(live_redis).version, in_redis(live_redis).rollout) == (2, FullRollout(generation=5))


def test_a_rollback_keeps_the_generation_of_the_delivery_that_it_ended(running, live_redis, policy):
    Delivery.objects.filter(pk=running.pk).update(state=State.BAKING)
    type(policy).objects.update(live=2)
    publishing.rollback(policy, 1, OTTO, WHY)
    assert (in_redis(live_redis).version, in_redis(live_redis).rollout) == (3, FullRollout(generation=3))


def test_a_crash_between_the_database_and_redis_is_repaired(running, live_redis, monkeypatch):
    publication.tell(running.policy)
    with monkeypatch.context() as patch:
        patch.setattr(publication, "tell", lambda _: (_ for _ in ()).throw(SystemExit("killed")))
        with pytest.raises(SystemExit):
            services.abort(running, OTTO)
    assert isinstance(in_redis(live_redis).rollout, SplitRollout)
    assert publishing.republish_missing() == ["demo"]
    assert in_redis(live_redis).rollout == FullRollout(generation=3)


def test_the_step_does_not_restore_the_split_of_a_delivery_aborted_meanwhile(running, live_redis):
    with between_reading_and_writing(lambda: services.abort(running, OTTO)):
        publication.tell(running.policy)
    assert in_redis(live_redis).rollout == FullRollout(generation=3)
    assert publishing.republish_missing() == []


def test_version_and_generation_are_from_the_same_moment(running, live_redis):
    """Another process promotes the candidate while this one reads; it must publish the state before or after."""
    statements = []

    def promote(execute, sql, *rest):
        statements.append(sql)
        if "policyversion" in sql and sum('FROM "policies_policyversion"' in each for each in statements) == 1:
            Delivery.objects.filter(pk=running.pk).update(state=State.BAKING, generation=9)
            type(running.policy).objects.update(live=2)
        return execute(sql, *rest)

    with connection.execute_wrapper(promote):
        (value,) = publication.as_stored(["demo"]).values()
    assert (value.version, value.rollout.generation) in {(1, 2), (2, 9)}
    assert running.policy.__class__.objects.get().live == 2


def test_an_empty_redis_gets_the_split_again(running, live_redis):
    publication.tell(running.policy)
    before = in_redis(live_redis).rollout
    live_redis.flushall()
    assert publishing.republish_missing() == ["demo"]
    assert in_redis(live_redis).rollout == before
    assert publishing.republish_missing() == []


def test_a_transition_without_redis_is_stored_and_written_later(pool, policy, redis_away):
    assert services.start(proposed(policy), OTTO).state == "arming"
    assert publication.tell(policy) is False


# Acknowledgements


def alive(live_redis: Any, name: str, **served: Any) -> None:
    import time

    live_redis.zadd(redis_keys.ROUTERS, {name: time.time()})
    status = RouterStatus(id=name, at=time.time(), pools={"demo": ServedPool(policy="default", version=1, **served)})
    live_redis.set(redis_keys.router_key(name), codec.encode(status))


@pytest.mark.parametrize(
    ("served", "is_behind"),
    [
        ({"generation": 4, "split": "on"}, False),
        ({"generation": 4, "split": "off"}, False),
        ({"generation": 3, "split": "on"}, True),
        ({"generation": 4, "split": "unreadable"}, True),
        ({"generation": 4, "split": "tripped"}, True),
        ({"generation": 4, "split": ""}, True),
    ],
)
def test_a_router_has_acknowledged_if_it_holds_both_versions_of_this_generation(live_redis, served, is_behind):
    alive(live_redis, "router-1", **served)
    assert publication.behind_generation("default", 4, ["demo"]) == (["router-1"] if is_behind else [])


def test_a_router_that_does_not_serve_the_pool_or_is_silent_is_behind(live_redis):
    import time

    alive(live_redis, "router-1", generation=4, split="on")
    live_redis.zadd(redis_keys.ROUTERS, {"router-2": time.time(), "router-9": 1.0})
    assert publication.behind_generation("default", 4, ["demo"]) == ["router-2"]
    assert publication.behind_generation("default", 4, ["demo", "night"]) == ["router-1", "router-2"]
    assert publication.behind_generation("other", 4, ["demo"]) == ["router-1", "router-2"]
