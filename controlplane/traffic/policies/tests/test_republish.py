"""The database is authoritative: whatever happens to Redis, a step of the loop brings it back in line."""

import pytest

from controlplane.doors.steps import STEPS
from controlplane.traffic.policies import publication, services
from controlplane.traffic.policies.tests.conftest import ADA, OTTO, WHY, edit, of_an_arm, published
from fleet.control.publish import publish_fleet
from fleet.models import Pool
from fleet.redis import ordered_write
from fleet.tests.interleaved import between_reading_and_writing
from fleet.tests.test_ordered_write import a_router_refuses
from router.contract.redis import redis_keys
from router.tests.values import loaded


def held(live_redis, pool="demo"):
    value = loaded(live_redis.get(redis_keys.policy_key(pool)))
    return value and value["version"]


def test_a_crash_between_commit_and_redis_is_repaired(policy, pool, live_redis, monkeypatch):
    services.republish_missing()
    edit(policy, heavy_new_tokens=9000)
    with monkeypatch.context() as patch:
        patch.setattr(services, "_tell_routers", lambda *_: (_ for _ in ()).throw(SystemExit("killed")))
        with pytest.raises(SystemExit):
            services.publish(policy, OTTO, WHY)
    assert held(live_redis) == 1
    assert services.republish_missing() == ["demo"]
    assert held(live_redis) == 2


def test_a_crash_between_reading_and_writing_is_repaired(policy, pool, live_redis, monkeypatch):
    services.republish_missing()
    edit(policy, heavy_new_tokens=9000)
    with monkeypatch.context() as patch:
        patch.setattr(ordered_write, "write", lambda *_: (_ for _ in ()).throw(SystemExit("killed")))
        with pytest.raises(SystemExit):
            services.publish(policy, OTTO, WHY)
    assert held(live_redis) == 1
    assert services.republish_missing() == ["demo"]
    assert held(live_redis) == 2


def test_a_publication_that_writes_late_does_not_undo_the_next(policy, pool, live_redis):
    edit(policy, heavy_new_tokens=9000)
    with between_reading_and_writing(lambda: published(policy, ADA, heavy_new_tokens=7000)):
        services.publish(policy, OTTO, WHY)
    assert held(live_redis) == 3
    assert services.republish_missing() == []


def test_the_step_does_not_undo_a_concurrent_publication(policy, pool, live_redis):
    with between_reading_and_writing(lambda: published(policy, heavy_new_tokens=9000)):
        assert services.republish_missing() == ["demo"]
    assert held(live_redis) == 2
    assert services.republish_missing() == []


def test_the_step_does_not_remove_a_pool_that_was_declared_meanwhile(policy, pool, live_redis):
    services.republish_missing()
    pool.delete()

    def declare():
        Pool.objects.create(name="demo", model="m", kind="sim", policy=policy.name)
        publication.tell(policy)

    with between_reading_and_writing(declare):
        services.republish_missing()
    assert held(live_redis) == 1
    assert live_redis.smembers(redis_keys.POOLS) == {b"demo"}


def test_the_fleet_of_a_pool_that_is_no_longer_declared_is_removed_with_its_policy(policy, pool, live_redis):
    services.republish_missing()
    publish_fleet("demo")
    pool.delete()
    assert services.republish_missing() == ["demo"]
    assert not live_redis.exists(redis_keys.policy_key("demo"), redis_keys.fleet_key("demo"))
    assert services.republish_missing() == []


def test_a_policy_that_a_router_refuses_as_older_is_written_again(policy, pool, live_redis):
    services.republish_missing()
    a_router_refuses(live_redis, redis_keys.policy_key("demo"), 2**42)
    assert services.republish_missing() == ["demo"]
    assert loaded(live_redis.get(redis_keys.policy_key("demo")))["order"] == 2**42 + 1


def test_an_empty_redis_is_filled(policy, pool, live_redis):
    published(policy, heavy_new_tokens=9000)
    live_redis.flushall()
    assert services.republish_missing() == ["demo"]
    assert held(live_redis) == 2
    assert live_redis.smembers(redis_keys.POOLS) == {b"demo"}


def test_nothing_is_written_if_nothing_is_missing(policy, pool, live_redis):
    services.republish_missing()
    assert services.republish_missing() == []


def test_a_pool_missing_only_in_the_set_is_added_again(policy, pool, live_redis):
    services.republish_missing()
    live_redis.srem(redis_keys.POOLS, "demo")
    assert services.republish_missing() == ["demo"]


@pytest.mark.parametrize("value", ["garbage", "{}", '{"schema":1,"policy":"default","version":1,"sha256":"other"}'])
def test_a_value_that_differs_from_the_version_is_replaced(policy, pool, live_redis, value):
    live_redis.set(redis_keys.policy_key("demo"), value)
    assert services.republish_missing() == ["demo"]
    assert held(live_redis) == 1


def test_a_document_changed_in_redis_is_replaced(policy, pool, live_redis):
    services.republish_missing()
    key = redis_keys.policy_key("demo")
    live_redis.set(key, live_redis.get(key).replace(b'"heavy_new_tokens":', b'"heavy_new_tokens":1'))
    assert services.republish_missing() == ["demo"]
    assert services.republish_missing() == []


@pytest.mark.parametrize("key", [redis_keys.policy_key("demo"), redis_keys.POOLS])
def test_a_key_of_another_type_is_replaced(policy, pool, live_redis, key):
    services.republish_missing()
    live_redis.delete(key)
    live_redis.rpush(key, "garbage")
    assert services.republish_missing() == ["demo"]
    assert held(live_redis) == 1
    assert live_redis.smembers(redis_keys.POOLS) == {b"demo"}


def test_a_pool_that_changes_its_policy_gets_the_new_policy(policy, pool, live_redis):
    services.republish_missing()
    services.create_policy("night", services.default_document("lpwl"), OTTO, "for the batch window")
    Pool.objects.filter(name="demo").update(policy="night")
    assert services.republish_missing() == ["demo"]
    assert loaded(live_redis.get(redis_keys.policy_key("demo")))["policy"] == "night"


def test_a_pool_that_is_no_longer_declared_is_removed(policy, pool, live_redis):
    services.republish_missing()
    pool.delete()
    assert services.republish_missing() == ["demo"]
    assert live_redis.smembers(redis_keys.POOLS) == set()


def test_pools_of_experiments_are_left_alone(policy, live_redis):
    for name in ("exp-7-a", "scratch"):
        Pool.objects.create(name=name, model="m", kind="sim", policy="default", ephemeral_owner="run 7")
        publication.publish_ephemeral(of_an_arm(name))
    assert services.republish_missing() == []
    assert live_redis.smembers(redis_keys.POOLS) == {b"exp-7-a", b"scratch"}


def test_a_pool_whose_policy_does_not_exist_is_left_out(policy, live_redis):
    Pool.objects.create(name="demo", model="m", kind="sim", policy="nowhere")
    assert services.republish_missing() == []


def test_the_control_worker_takes_the_step(policy, pool, live_redis):
    STEPS["policies.republish"].run()
    assert held(live_redis) == 1
