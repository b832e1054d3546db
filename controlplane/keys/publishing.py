"""Publishes API keys to Redis, for routers. The database is the source of truth."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from django.db.models import Q
from django.utils import timezone
from redis import RedisError

from controlplane.keys.models import ApiKey, KeyedPool
from fleet.redis import connect
from router.contract import codec, redis_keys

log = structlog.get_logger(__name__)
LAST_USED_STEP = timedelta(minutes=1)  # a busy key is written once a minute


def document() -> dict[str, Any]:
    """As wire.py's weir:keys, without the time."""
    good = ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)
    return {
        "required": sorted(KeyedPool.objects.values_list("pool", flat=True)),
        "keys": [_entry(key) for key in good.order_by("pk")],
    }


def _entry(key: ApiKey) -> dict[str, Any]:
    return {
        "id": str(key.pk),
        "name": key.name,
        "sha256": key.sha256,
        "pools": key.pools,
        "requests_per_min": key.requests_per_min,
        "tokens_per_min": key.tokens_per_min,
        "expires_at": key.expires_at.timestamp() if key.expires_at is not None else None,
    }


def publish() -> bool:
    """Publish the current keys. False when Redis is unreachable; `republish` tries again later."""
    try:
        with connect().pipeline(transaction=True) as pipe:
            pipe.set(redis_keys.API_KEYS, codec.encode({"at": time.time(), **document()}))
            pipe.publish(redis_keys.CHANGED, redis_keys.API_KEYS)
            pipe.execute()
    except RedisError as error:
        log.warning("keys.not_published", error=str(error))
        return False
    return True


def republish() -> bool:
    """One step of the loop: write the keys to Redis if they differ from the database. True when they did."""
    held = codec.decode(connect().get(redis_keys.API_KEYS))
    wanted = document()
    if held is not None and {name: held.get(name) for name in wanted} == wanted:
        return False
    log.info("keys.republished", keys=len(wanted["keys"]))
    return publish()


def take_last_uses() -> None:
    """Copy the routers' last-used times of the keys into the database."""
    uses: Any = connect().hgetall(redis_keys.API_KEYS_USED)
    for raw_id, raw_at in uses.items():
        try:
            pk, at = int(raw_id), datetime.fromtimestamp(float(raw_at), UTC)
        except (OSError, OverflowError, ValueError):
            continue
        stale = Q(last_used_at=None) | Q(last_used_at__lte=at - LAST_USED_STEP)
        ApiKey.objects.filter(stale, pk=pk).update(last_used_at=at)
