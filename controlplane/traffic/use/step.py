"""Adds the routers' counts to the ledger every 10 s, and publishes the hours that it includes."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from django.db import transaction

from controlplane.traffic.use import ledger, spending
from controlplane.traffic.use.ledger import Entry, add
from controlplane.traffic.use.models import HELD, HeldUntil
from fleet.control import publish
from fleet.control.publish import HeldGpus
from fleet.redis import connect, drop_unless
from router.contract.redis import redis_keys
from router.contract.redis.codec import Unreadable, read
from router.contract.redis.use import HOUR_S, UseHour, pool_in_use

log = structlog.get_logger(__name__)
GONE_S = 86_400  # silence of a router after which it is forgotten


# The bill: GPU time held by the pools' instances, used or not. The idle part is the bill minus the charges.
# Longest period counted at once; without a control worker, nobody knows which instances were running
LONGEST = timedelta(hours=12)
# Period counted for a pool on its first count, because the pool may be older than this ledger
NEW = timedelta(minutes=1)


@transaction.atomic
def count(now: datetime) -> None:
    """Count the time since the last call. An instance that started while no control worker ran counts from its
    start."""
    until = dict(HeldUntil.objects.values_list("pool", "at"))
    by_pool: dict[str, list[HeldGpus]] = {}
    for one in publish.held_gpus():
        by_pool.setdefault(one.pool, []).append(one)
    for pool, instances in by_pool.items():
        begin = max(until.get(pool, now - NEW), now - LONGEST)
        for hour, gpu_s, dollars in _by_hour(instances, begin, now):
            counts = {"gpu_us": round(gpu_s * 1e6), "micro_dollars": round(dollars * 1e6)}
            add(hour, HOUR_S, Entry(HELD, pool_in_use(pool)), HELD, counts)
        HeldUntil.objects.update_or_create(pool=pool, defaults={"at": max(begin, now)})
    HeldUntil.objects.filter(at__lt=now - timedelta(days=1)).exclude(pool__in=by_pool).delete()


def _by_hour(instances: Iterable[HeldGpus], begin: datetime, now: datetime) -> Iterator[tuple[datetime, float, float]]:
    """Yield (hour, GPU-seconds, dollars)."""
    for one in instances:
        at = max(begin, one.since)
        while at < now:
            hour = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            end = min(now, hour + timedelta(seconds=HOUR_S))
            seconds = (end - at).total_seconds()
            yield hour, seconds * one.gpus, seconds * one.dollars_per_hour / 3600
            at = end


def step(now: datetime) -> None:
    try:
        count(now)
    finally:
        try:
            gather(now)
        finally:
            spending.step(now)


def gather(now: datetime) -> None:
    drop_unless("zset", redis_keys.USE)
    lives: Any = connect().zrange(redis_keys.USE, 0, -1, withscores=True)
    for raw, wrote_at in lives:
        life = raw.decode("utf-8", "replace")
        kept = _take(life)
        if wrote_at < now.timestamp() - GONE_S:
            _forget(raw, life, kept)


def _take(life: str) -> dict[int, int]:
    """Process an incarnation's hours. Return each with the number of its report."""
    key, kept_key = redis_keys.use_key(life), redis_keys.use_kept_key(life)
    drop_unless("hash", key)
    found: Any = connect().hgetall(key)
    kept = {}
    for raw in found.values():
        try:
            value = read(UseHour, raw)
        except Unreadable as error:
            log.warning("use.unreadable", router=life, error=str(error))
            continue
        ledger.take(life, value)
        kept[value.hour] = value.written
    if kept:
        drop_unless("hash", kept_key)
        connect().hset(kept_key, mapping={str(hour): written for hour, written in kept.items()})
        connect().expire(kept_key, redis_keys.USE_TTL_S)
    return kept


def _forget(raw: bytes, life: str, kept: dict[int, int]) -> None:
    """Forget a router that has been silent for long, once the ledger has all of its hours."""
    if connect().hlen(redis_keys.use_key(life)) <= len(kept):
        connect().delete(redis_keys.use_key(life), redis_keys.use_kept_key(life))
        connect().zrem(redis_keys.USE, raw)


def clean_up() -> None:
    now = datetime.now(UTC)
    ledger.clean_up(now)
    spending.clean_up(now)
