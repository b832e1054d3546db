"""A router accepts no value older than the one it has, whatever Redis holds."""

import pytest
import redis

from router.contract.redis import codec, redis_keys
from router.contract.redis.published import FleetValue
from router.contract.redis.router_status import RouterStatus
from router.sync.live_state import ValuesInForce
from router.tests.conftest import entry, key_entry
from router.tests.test_keys import ALICE, BOB, bearer
from router.tests.test_live import demo

POLICY = redis_keys.policy_key("demo")


def a_fleet(order, model="llama", at=1.0):
    return FleetValue(pool="demo", model=model, at=at, instances=(), order=order)


async def told(w):
    return " ".join((await w.client.get("/healthz")).json()["degraded"])


async def polled(w):
    await w.router.source.live.poll()


# Which value applies


@pytest.mark.parametrize(("order", "taken"), [(11, True), (10, True), (9, False), (1, False), (0, True)])
def test_a_value_of_a_lower_order_is_refused_but_one_without_an_order_is_accepted(order, taken):
    values = ValuesInForce()
    values.take("k", a_fleet(10))
    assert values.take("k", a_fleet(order, "other")) is taken
    assert (values.older, values.refused) == ((0, {}) if taken else (1, {"k": 10}))


def test_an_older_value_with_equal_content_does_not_lower_the_order():
    values = ValuesInForce()
    values.take("k", a_fleet(10))
    assert values.take("k", a_fleet(9, at=0.5))
    assert not values.take("k", a_fleet(9, "other"))  # the greater order still applies


def test_a_value_without_an_order_does_not_admit_an_older_one():
    values = ValuesInForce()
    values.take("k", a_fleet(10))
    values.take("k", a_fleet(0, "by a script"))
    assert not values.take("k", a_fleet(9, "other"))


def test_each_key_has_its_own_order():
    values = ValuesInForce()
    values.take("k", a_fleet(10))
    assert values.take("other", a_fleet(9))


def test_a_pool_that_was_removed_and_declared_again_starts_over():
    values = ValuesInForce()
    values.take("k", a_fleet(10))
    values.forget("k")
    assert values.take("k", a_fleet(9, "other"))


# In a router


async def test_an_older_policy_is_refused_reported_and_counted_until_redis_holds_a_newer_one(world, caplog):
    w = await world(None, order=10)
    w.published.policy(order=9, classes__heavy_new_tokens=9000)
    await polled(w)
    await polled(w)
    assert demo(w).version == 1
    assert "policy of pool demo: Redis holds an older one (order 9; in force is 10)" in await told(w)
    assert caplog.text.count("Redis holds an older one") == 1
    assert "weir_router_older_values_total 1.0" in (await w.client.get("/metrics")).text
    w.published.policy(order=11)
    await w.until(lambda: demo(w).version == 3)
    assert "older" not in await told(w)


async def test_an_older_fleet_is_refused(world):
    w = await world(None)
    w.published.fleet(entry("demo-0", w.engines[0].url), order=10)
    await polled(w)
    w.published.fleet(order=9)
    await polled(w)
    assert demo(w).ready == 1
    assert (await w.ask()).status_code == 200
    assert "fleet of pool demo: Redis holds an older one" in await told(w)


async def test_older_api_keys_do_not_readmit_a_revoked_one(world):
    w = await world(None)
    w.published.keys(key_entry(BOB), required=("*",), order=10)
    await polled(w)
    w.published.keys(key_entry(ALICE), key_entry(BOB), required=("*",), order=9)
    await polled(w)
    assert (await w.ask(headers=bearer(ALICE))).status_code == 401
    assert (await w.ask(headers=bearer(BOB))).status_code == 200
    assert "API keys: Redis holds an older one" in await told(w)


async def test_a_redis_that_comes_back_with_an_older_policy_is_refused(world, live_redis: redis.Redis):
    w = await world(None, order=10)
    older = live_redis.get(POLICY)
    w.published.policy(order=20)
    await w.until(lambda: demo(w).version == 2)
    live_redis.flushall()
    await polled(w)
    live_redis.sadd(redis_keys.POOLS, "demo")
    live_redis.set(POLICY, older)
    await polled(w)
    assert demo(w).version == 2


async def test_a_router_reports_refused_values_to_the_control_plane(world, live_redis: redis.Redis):
    w = await world(None, order=10)
    w.published.policy(order=9)
    await polled(w)
    await w.router.source.reporter.report()
    status = codec.read(RouterStatus, live_redis.get(redis_keys.router_key("router-1")))
    assert status.refused == {POLICY: 10}
    live_redis.delete(POLICY)
    await polled(w)
    assert w.router.source.live.in_force.refused == {}


async def test_a_pool_that_is_declared_again_is_served_whatever_its_order(world):
    w = await world(None, order=10)
    w.published.client.srem(redis_keys.POOLS, "demo")
    w.published.client.delete(redis_keys.fleet_key("demo"), POLICY)
    w.published.client.publish(redis_keys.CHANGED, redis_keys.fleet_key("demo"))
    await w.until(lambda: w.router.pools.get("demo") is None)
    w.published.policy(order=9)
    w.published.fleet(entry("demo-0", w.engines[0].url), order=8)
    await w.until(lambda: demo(w) is not None and demo(w).version == 2 and demo(w).ready)
