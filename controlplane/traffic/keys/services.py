"""Creates, changes and revokes API keys, each with an audit entry. Keys are published to routers after the commit."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from controlplane.common.as_seen import check, digest, held
from controlplane.people.accounts.models import can_expire_at
from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from controlplane.traffic.keys import publishing
from controlplane.traffic.keys.models import ALL_POOLS, ApiKey, KeyedPool
from fleet.models import Pool
from fleet.services import hold_fleet
from router.contract.models import LONGEST_NAME
from router.contract.redis.api_keys import BAND_MAX
from router.contract.values.problem import invalid

LIMIT_MAX = 2_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTerms:
    """The pools, models, limits, expiry and priority of a key."""

    pools: tuple[str, ...] = ()  # empty for every pool
    models: tuple[str, ...] = ()  # model names that its requests may use; empty for every name
    requests_per_min: int | None = None  # None for no limit
    tokens_per_min: int | None = None
    expires_at: datetime | None = None
    priority: int = 0  # band of its requests that do not request one
    priority_max: int | None = None  # highest band that they may ask for; None: 0, or `priority` if that is higher


def terms_of(row: ApiKey) -> KeyTerms:
    return KeyTerms(
        pools=tuple(row.pools),
        models=tuple(row.models),
        requests_per_min=row.requests_per_min,
        tokens_per_min=row.tokens_per_min,
        expires_at=row.expires_at,
        priority=row.priority,
        priority_max=row.priority_max,
    )


def create_key(name: str, terms: KeyTerms, actor: Actor) -> tuple[ApiKey, str]:
    """Create a key. Return the row and the secret, which is not stored and cannot be shown again. Raise
    InvalidInput."""
    name, terms = name.strip(), _checked(name, terms)
    with _one_of_a_name(name), transaction.atomic():
        row, secret = ApiKey.issue(name=name, created_by=actor.name[:200], **asdict(terms))
        audit.record(actor, "key.create", f"API key {name}", "", None, _shown(name, terms))
        transaction.on_commit(publishing.publish)
    return row, secret


def change_key(row: ApiKey, changes: Mapping[str, Any], actor: Actor, *, if_match: str | None = None) -> ApiKey:
    """Write the given fields: `name` and those of KeyTerms. Raise InvalidInput or ChangedMeanwhile."""
    with _one_of_a_name(str(changes.get("name", row.name))), _held(row, if_match) as row:
        if row.revoked_at is not None:
            raise invalid("", row.name, f"the API key {row.name} is revoked, which cannot be undone")
        before, given = terms_of(row), dict(changes)
        name = str(given.pop("name", row.name)).strip()
        terms = _checked(name, replace(before, **given), kept=row.expires_at)
        values = {"name": name, **asdict(terms)}
        ApiKey.objects.filter(pk=row.pk).update(**{field: values[field] for field in changes})
        audit.record(actor, "key.change", f"API key {name}", "", _shown(row.name, before), _shown(name, terms))
        row.refresh_from_db()
        transaction.on_commit(publishing.publish)
    return row


def revoke_key(row: ApiKey, actor: Actor, *, if_match: str | None = None) -> bool:
    """Revoke a key; return False if it was already revoked. Raise ChangedMeanwhile."""
    with _held(row, if_match) as row:
        if not row.revoke():
            return False
        audit.record(actor, "key.revoke", f"API key {row.name}")
        transaction.on_commit(publishing.publish)
    return True


def _held(row: ApiKey, if_match: str | None) -> AbstractContextManager[ApiKey]:
    return held(ApiKey.objects.filter(pk=row.pk), f"API key {row.name}", if_match)


@transaction.atomic
def require_keys(pools: Iterable[str], actor: Actor, *, if_match: str | None = None) -> list[str]:
    """Require a key for these pools ("*": all pools) and for no others. Raise InvalidInput or ChangedMeanwhile."""
    wanted = sorted(set(pools))
    hold_fleet()
    _check_pools("pools", wanted, ALL_POOLS)
    check("which pools require a key", required_etag(), if_match)
    before = required_pools()
    if wanted == before:
        return before
    KeyedPool.objects.exclude(pool__in=wanted).delete()
    KeyedPool.objects.bulk_create([KeyedPool(pool=pool) for pool in wanted], ignore_conflicts=True)
    audit.record(actor, "key.require", "API keys", "", {"pools": before}, {"pools": wanted})
    transaction.on_commit(publishing.publish)
    return wanted


def required_etag() -> str:
    return digest("required", required_pools())


def required_pools() -> list[str]:
    return sorted(KeyedPool.objects.values_list("pool", flat=True))


def pool_names() -> list[str]:
    return list(Pool.objects.filter(ephemeral_owner="").order_by("name").values_list("name", flat=True))


def _checked(name: str, terms: KeyTerms, kept: datetime | None = None) -> KeyTerms:
    """Return the terms, with the pools in order. An unchanged expiry may lie in the past."""
    if not name.strip():
        raise invalid("name", "", "must not be empty")
    pools = sorted(set(terms.pools))
    _check_pools("pools", pools)
    for model in terms.models:
        if not 1 <= len(model) <= LONGEST_NAME or not model.isprintable():
            raise invalid("models", model, f"not the name of a model: 1 to {LONGEST_NAME} printable characters")
    for field in ("requests_per_min", "tokens_per_min"):
        limit = getattr(terms, field)
        if limit is not None and not 1 <= limit <= LIMIT_MAX:
            raise invalid(field, limit, f"must be a whole number from 1 to {LIMIT_MAX:,}, or empty for no limit")
    most = _checked_band(terms)
    at = terms.expires_at
    if at is not None and at != kept and not can_expire_at(at):
        raise invalid("expires_at", at.isoformat(), "must lie in the future and carry a time zone")
    return replace(terms, pools=tuple(pools), models=tuple(sorted(set(terms.models))), priority_max=most)


def _checked_band(terms: KeyTerms) -> int:
    """Return the highest band that the key's requests may ask for."""
    most = max(terms.priority, 0) if terms.priority_max is None else terms.priority_max
    for field, band in (("priority", terms.priority), ("priority_max", most)):
        if not -BAND_MAX <= band <= BAND_MAX:
            raise invalid(field, band, f"must be a whole number from -{BAND_MAX} to {BAND_MAX}")
    if terms.priority > most:
        raise invalid("priority", terms.priority, f"must not be above the highest that it may ask for ({most})")
    return most


def _check_pools(path: str, pools: list[str], *others: str) -> None:
    known = [*others, *pool_names()]
    for pool in pools:
        if pool not in known:
            raise invalid(path, pool, f"no such pool; known pools: {', '.join(known) or 'none'}")


@contextlib.contextmanager
def _one_of_a_name(name: str) -> Iterator[None]:
    """Convert a violation of the database's unique constraint on names to an InvalidInput."""
    if len(name) > 80:
        raise invalid("name", name[:60], "may have at most 80 characters")
    try:
        yield
    except IntegrityError:
        raise invalid("name", name, "a usable API key of that name exists already") from None


def _shown(name: str, terms: KeyTerms) -> dict[str, object]:
    at = terms.expires_at
    return {"name": name, **asdict(terms), "expires_at": at.isoformat() if at else None}
