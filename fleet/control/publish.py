"""The fleet as routers read it: weir:fleet:<pool>, written on change and when Redis has lost it."""

import logging
from typing import Any

import redis
from django.utils import timezone

from fleet.kinds import KINDS
from fleet.models import Instance, Pool, State
from fleet.plan.desired import DesiredPool
from fleet.plan.drift import difference
from fleet.redis import connect
from fleet.snapshot import desired_of_all, observed_of
from router.contract import codec, redis_keys

log = logging.getLogger(__name__)


def publish_fleet(pool_name: str) -> bool:
    """Write the pool's instances to Redis if they differ; True when written.

    Two writers may race with an older and a newer view, so each reads the database again after writing and the newest
    view wins. Without Redis, the periodic fleet.publish task writes them later.
    """
    try:
        return _publish(pool_name)
    except redis.RedisError as error:
        log.warning("pool %s not published: %s", pool_name, error)
        return False


def _publish(pool_name: str) -> bool:
    written = False
    while True:
        instances = _instances(pool_name)
        if not _put(pool_name, instances):
            return written
        written = True
        if instances == _instances(pool_name):
            return True


def remove_fleet(pool_name: str) -> None:
    """Remove a deleted pool and its policy from the routers."""
    pipe = connect().pipeline()
    pipe.srem(redis_keys.POOLS, pool_name)
    for key in (redis_keys.fleet_key(pool_name), redis_keys.policy_key(pool_name)):
        pipe.delete(key)
        pipe.publish(redis_keys.CHANGED, key)
    pipe.execute()


def _put(pool_name: str, value: dict[str, Any] | None) -> bool:
    client, key = connect(), redis_keys.fleet_key(pool_name)
    there = codec.decode(client.get(key))
    if value is None:
        if there is not None:
            remove_fleet(pool_name)
        return False
    if there is not None and {**there, "at": 0} == {"schema": codec.SCHEMA, **value, "at": 0}:
        return False
    encoded = codec.encode({**value, "at": timezone.now().timestamp()})
    pipe = client.pipeline()
    pipe.set(key, encoded)
    pipe.sadd(redis_keys.POOLS, pool_name)
    pipe.publish(redis_keys.CHANGED, key)
    pipe.execute()
    return True


def _instances(pool_name: str) -> dict[str, Any] | None:
    pool = Pool.objects.filter(name=pool_name).first()
    if pool is None or (pool.kind in KINDS and not KINDS[pool.kind].serves):
        return None
    desired = desired_of_all([pool], timezone.now())[0] if pool.kind in KINDS else None
    listed = [_entry(pool, desired, instance) for instance in pool.instances.order_by("ordinal")]
    told = {"pool": pool.name, "model": pool.model, "policy": pool.policy, "at": 0, "instances": listed}
    return {**told, "halted": pool.halted}


def _entry(pool: Pool, desired: DesiredPool | None, instance: Instance) -> dict[str, Any]:
    return {
        "id": instance.name,
        "epoch": instance.epoch,
        "url": instance.url,
        "state": instance.state,
        "routable": instance.state == State.READY and bool(instance.url),
        "reason": instance.reason,
        "kind": pool.kind,
        "node": instance.node,
        "block_size": instance.block_size,
        "kv_blocks": instance.kv_blocks,
        "matches": desired is not None and not difference(desired, observed_of(instance, None)),
        **instance.wire,
    }
