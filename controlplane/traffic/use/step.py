"""Adds the routers' counts to the ledger every 10 s, and publishes which hours it has."""

from datetime import UTC, datetime
from typing import Any

import structlog

from controlplane.traffic.use import held, ledger, spending
from fleet.redis import connect, drop_unless
from router.contract.redis import redis_keys
from router.contract.redis.codec import Unreadable, read
from router.contract.redis.use import UseHour

log = structlog.get_logger(__name__)
GONE_S = 86_400  # silence of a router after which it is forgotten


def step(now: datetime) -> None:
    try:
        held.count(now)
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
    """Take a life's hours; return each with the number of its report."""
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
    """Forget a router that has long been silent once the ledger has all its hours."""
    if connect().hlen(redis_keys.use_key(life)) <= len(kept):
        connect().delete(redis_keys.use_key(life), redis_keys.use_kept_key(life))
        connect().zrem(redis_keys.USE, raw)


def clean_up() -> None:
    now = datetime.now(UTC)
    ledger.clean_up(now)
    spending.clean_up(now)
