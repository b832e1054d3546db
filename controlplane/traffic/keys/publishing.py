"""Publishes API keys to Redis, for routers. The database is the source of truth."""

from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from django.db.models import Q
from django.utils import timezone

from controlplane.people.accounts.models import digest
from controlplane.traffic.keys import workers_secret
from controlplane.traffic.keys.models import ApiKey, Budget, KeyedPool, published
from fleet.redis import connect, drop_unless, ordered_write
from fleet.redis.ordered_write import Published
from router.contract.redis import redis_keys
from router.contract.redis.api_keys import ApiKeysValue, PublishedKey
from router.contract.redis.budgets import PublishedBudget

log = structlog.get_logger(__name__)
LAST_USED_STEP = timedelta(minutes=1)  # resolution of last-used times: a busy key is written once a minute


def valid_keys() -> ApiKeysValue:
    """Return the valid keys in the database, without order and time."""
    valid = ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)
    return ApiKeysValue(
        required=frozenset(KeyedPool.objects.values_list("pool", flat=True)),
        batch_sha256=digest(workers_secret.secret()),
        keys=tuple(_published(key) for key in valid.prefetch_related("budgets").order_by("pk")),
        pool_budgets=_of_pools(),
    )


def _of_pools() -> dict[str, tuple[PublishedBudget, ...]]:
    found: dict[str, tuple[PublishedBudget, ...]] = {}
    for row in Budget.objects.filter(key=None).order_by("pk"):
        found[row.pool] = (*found.get(row.pool, ()), published(row))
    return found


def _published(key: ApiKey) -> PublishedKey:
    return PublishedKey(
        id=str(key.pk),
        name=key.name,
        sha256=key.sha256,
        pools=frozenset(key.pools),
        models=frozenset(key.models),
        requests_per_min=key.requests_per_min,
        tokens_per_min=key.tokens_per_min,
        priority=key.priority,
        priority_max=key.priority_max,
        expires_at=key.expires_at.timestamp() if key.expires_at is not None else None,
        budgets=tuple(published(budget) for budget in sorted(key.budgets.all(), key=lambda budget: budget.pk)),
    )


def _as_stored() -> Published:
    return {redis_keys.API_KEYS: valid_keys()}


def publish() -> bool:
    """Publish the current keys. Return False if they could not be written, so that `republish` tries again later."""
    try:
        ordered_write.publish(_as_stored)
    except ordered_write.FAILURES as error:
        log.warning("keys.not_published", error=str(error))
        return False
    return True


def republish() -> bool:
    """Write the keys to Redis if they differ from the database; return whether it did. A step of the loop."""
    if not ordered_write.differing(_as_stored(), ordered_write.refused_by_routers()):
        return False
    log.info("keys.republished")
    return publish()


def take_last_uses() -> None:
    """Copy the routers' last-used times of the keys into the database."""
    drop_unless("hash", redis_keys.API_KEYS_USED)
    uses: Any = connect().hgetall(redis_keys.API_KEYS_USED)
    for raw_id, raw_at in uses.items():
        try:
            pk, at = int(raw_id), datetime.fromtimestamp(float(raw_at), UTC)
        except (OSError, OverflowError, ValueError):
            continue
        stale = Q(last_used_at=None) | Q(last_used_at__lte=at - LAST_USED_STEP)
        ApiKey.objects.filter(stale, pk=pk).update(last_used_at=at)
