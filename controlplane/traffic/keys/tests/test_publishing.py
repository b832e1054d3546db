"""Routers follow the database, whatever Redis has lost."""

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.people.audit.services import SYSTEM
from controlplane.traffic.keys import publishing, services
from controlplane.traffic.keys.models import ApiKey
from controlplane.traffic.keys.services import KeyTerms
from fleet.tests.interleaved import between_reading_and_writing
from fleet.tests.test_ordered_write import a_router_refuses
from router.contract.redis import redis_keys
from router.contract.redis.api_keys import ApiKeysValue, keyring
from router.contract.redis.codec import read

pytestmark = pytest.mark.usefixtures("pools")


def published(live_redis):
    return keyring(read(ApiKeysValue, live_redis.get(redis_keys.API_KEYS)))


def make(name="search", **terms):
    return services.create_key(name, KeyTerms(**terms), SYSTEM)


def test_a_router_reads_what_is_published(live_redis, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        row, secret = make(pools=("chat",), requests_per_min=60, tokens_per_min=1000)
        services.require_keys(["code"], SYSTEM)
    ring = published(live_redis)
    key = ring.holder(secret.encode())
    assert (key.id, key.name, key.requests_per_min, key.tokens_per_min) == (str(row.pk), "search", 60, 1000)
    assert (key.serves("chat"), key.serves("code")) == (True, False)
    assert (ring.requires("code", False), ring.requires("chat", False)) == (True, False)


def test_a_revoked_or_expired_key_is_no_longer_published(live_redis):
    row, revoked = make()
    _, expired = make("old", expires_at=timezone.now() + timedelta(hours=1))
    ApiKey.objects.filter(name="old").update(expires_at=timezone.now() - timedelta(seconds=1))
    services.revoke_key(row, SYSTEM)
    publishing.publish()
    ring = published(live_redis)
    assert ring.holder(revoked.encode()) is None
    assert ring.holder(expired.encode()) is None


def test_a_change_is_announced_on_the_channel(live_redis):
    channel = live_redis.pubsub(ignore_subscribe_messages=True)
    channel.subscribe(redis_keys.CHANGED)
    channel.get_message(timeout=20)
    publishing.publish()
    message = channel.get_message(timeout=20)
    assert message["data"].decode() == redis_keys.API_KEYS
    channel.close()


def test_an_empty_redis_is_filled_and_a_correct_redis_is_left_alone(live_redis):
    _, secret = make()
    assert publishing.republish() is True
    live_redis.flushall()
    assert publishing.republish() is True
    assert published(live_redis).holder(secret.encode()) is not None
    assert publishing.republish() is False


def test_a_key_revoked_in_the_meantime_does_not_come_back(live_redis):
    row, secret = make()

    def revoke():
        services.revoke_key(row, SYSTEM)
        publishing.publish()

    with between_reading_and_writing(revoke):
        assert publishing.republish() is True
    assert published(live_redis).holder(secret.encode()) is None
    assert publishing.republish() is False


def test_keys_that_a_router_refuses_as_older_are_written_again(live_redis):
    publishing.publish()
    a_router_refuses(live_redis, redis_keys.API_KEYS, 2**42)
    assert publishing.republish() is True
    assert read(ApiKeysValue, live_redis.get(redis_keys.API_KEYS)).order == 2**42 + 1


def test_a_key_is_kept_when_redis_is_unreachable(redis_away, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        make()
    assert ApiKey.objects.get().name == "search"


def test_times_of_last_use_are_stored_once_a_minute(live_redis):
    row, _ = make()
    now = time.time()
    live_redis.hset(redis_keys.API_KEYS_USED, mapping={str(row.pk): now - 100, "nonsense": 1, "9999": now})
    publishing.take_last_uses()
    row.refresh_from_db()
    first = row.last_used_at
    assert first.timestamp() == pytest.approx(now - 100, abs=0.01)
    live_redis.hset(redis_keys.API_KEYS_USED, str(row.pk), now - 90)
    publishing.take_last_uses()
    row.refresh_from_db()
    assert row.last_used_at == first


@pytest.mark.parametrize(
    "spoil", [lambda redis, key: redis.set(key, "garbage"), lambda redis, key: redis.rpush(key, "x")]
)
def test_a_corrupt_value_is_written_again(live_redis, spoil):
    _, secret = make()
    live_redis.delete(redis_keys.API_KEYS)
    spoil(live_redis, redis_keys.API_KEYS)
    assert publishing.republish()
    assert published(live_redis).holder(secret.encode()) is not None
    assert not publishing.republish()


def test_times_of_last_use_with_a_wrong_type_are_dropped(live_redis):
    live_redis.set(redis_keys.API_KEYS_USED, "garbage")
    publishing.take_last_uses()
    assert not live_redis.exists(redis_keys.API_KEYS_USED)
