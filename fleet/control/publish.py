"""The fleet as routers read it: weir:fleet:<pool>, written on change and when Redis has lost it."""

import logging

import redis
from django.utils import timezone
from msgspec.structs import replace

from fleet import selectors
from fleet.kinds import KINDS
from fleet.kinds.kind import Hardware, hardware_of
from fleet.kinds.option import build
from fleet.models import Instance, Pool, State
from fleet.plan.desired import DesiredPool
from fleet.plan.drift import difference
from fleet.redis import connect, drop_unless, value_of
from fleet.snapshot import desired_of_all, observed_of
from fleet.spec.sections import slo_of
from fleet.systems.prices import Prices
from router.contract.redis import codec, redis_keys
from router.contract.redis.published import FleetValue, PublishedInstance

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
        fleet = _fleet(pool_name)
        if not _put(pool_name, fleet):
            return written
        written = True
        if fleet == _fleet(pool_name):
            return True


def remove_fleet(pool_name: str) -> None:
    """Remove a deleted pool and its policy from the routers."""
    pipe = connect().pipeline()
    pipe.srem(redis_keys.POOLS, pool_name)
    for key in (redis_keys.fleet_key(pool_name), redis_keys.policy_key(pool_name)):
        pipe.delete(key)
        pipe.publish(redis_keys.CHANGED, key)
    pipe.execute()


def _put(pool_name: str, value: FleetValue | None) -> bool:
    key = redis_keys.fleet_key(pool_name)
    there = value_of(FleetValue, key)
    if value is None:
        if there is not None:
            remove_fleet(pool_name)
        return False
    if there is not None and replace(there, at=value.at) == value:
        return False
    drop_unless("set", redis_keys.POOLS)
    pipe = connect().pipeline()
    pipe.set(key, codec.encode(replace(value, at=timezone.now().timestamp())))
    pipe.sadd(redis_keys.POOLS, pool_name)
    pipe.publish(redis_keys.CHANGED, key)
    pipe.execute()
    return True


def _fleet(pool_name: str) -> FleetValue | None:
    """The pool as the database has it, without a time; None when routers do not serve it."""
    pool = Pool.objects.filter(name=pool_name).first()
    if pool is None or (pool.kind in KINDS and not KINDS[pool.kind].serves):
        return None
    desired = desired_of_all([pool], timezone.now())[0] if pool.kind in KINDS else None
    prices = selectors.prices()
    instances = tuple(_instance(pool, desired, row, prices) for row in pool.instances.order_by("ordinal"))
    return FleetValue(
        pool=pool.name,
        model=pool.model,
        policy=pool.policy,
        at=0.0,
        halted=pool.halted,
        slo=slo_of(pool.slo, pool.autoscale),
        instances=instances,
    )


def _instance(pool: Pool, desired: DesiredPool | None, row: Instance, prices: Prices) -> PublishedInstance:
    hardware = _hardware(pool, row)
    dollars = prices.per_hour(hardware.gpus, hardware.dram_gb, hardware.ssd_gb)
    facts, waiting = row.facts, selectors.waits_for_group(row)
    return PublishedInstance(
        id=row.name,
        epoch=row.epoch,
        url=row.url,
        state=row.state,
        routable=row.state == State.READY and bool(row.url) and not waiting,
        reason=waiting or row.reason,
        kind=pool.kind,
        node=row.node,
        block_size=row.block_size,
        kv_blocks=row.kv_blocks,
        matches=desired is not None and not difference(desired, observed_of(row, None)),
        gpus=hardware.gpus,
        dollars_per_hour=round(dollars, 6) if hardware.gpus else None,
        role=facts.role,
        connector=facts.connector,
        kv=facts.kv,
        events=facts.events,
        tokenizer=facts.tokenizer,
    )


def _hardware(pool: Pool, row: Instance) -> Hardware:
    """Of the present options; none of a kind, an option or a model that is no longer known: routing goes on."""
    try:
        kind = KINDS[pool.kind]
        return hardware_of(kind, build(kind.spec, pool.engine), row.facts.role)
    except LookupError:
        return Hardware()
