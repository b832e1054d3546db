"""A pool in Redis is written again, whatever has become of it there."""

import pytest
import redis

from fleet import services
from fleet.control.publish import publish_step
from fleet.models import Pool
from fleet.tests.world import document
from router.contract.redis import redis_keys
from router.tests.values import loaded

KEY = redis_keys.fleet_key("p")


@pytest.fixture
def pool(db: None, fake_kind: None, live_redis: redis.Redis) -> Pool:
    services.apply_fleet(document(0), "ada")
    assert publish_step() == ["p"]
    assert publish_step() == []
    return services.selectors.pool("p")


@pytest.mark.parametrize("value", ["garbage", "{}", '{"schema":1,"pool":"p"}', b"\xff\x00", ""])
def test_a_value_that_cannot_be_read_is_replaced(pool: Pool, live_redis: redis.Redis, value: str | bytes) -> None:
    live_redis.set(KEY, value)
    assert publish_step() == ["p"]
    assert loaded(live_redis.get(KEY))["model"] == "m"
    assert publish_step() == []


@pytest.mark.parametrize("key", [KEY, redis_keys.POOLS])
def test_a_key_of_another_type_is_replaced(pool: Pool, live_redis: redis.Redis, key: str) -> None:
    for spoilt in {KEY, key}:
        live_redis.delete(spoilt)
        live_redis.rpush(spoilt, "garbage")
    assert publish_step() == ["p"]
    assert loaded(live_redis.get(KEY))["model"] == "m"
    assert live_redis.smembers(redis_keys.POOLS) == {b"p"}
