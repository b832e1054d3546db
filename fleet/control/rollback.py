"""Rolls back a pool's configuration, on request or after a failed change."""

import datetime as dt
from collections.abc import Callable

from django.db import transaction

from fleet import events
from fleet.models import Pool, PoolVersion
from fleet.services import NotPossible, hold_fleet
from fleet.snapshot import pool_spec
from fleet.spec import versions
from fleet.spec.fleet_spec import config_hash

RollBack = Callable[[str, str], PoolVersion]  # (pool, reason); raises NotPossible with the reason


def rollback_pool(pool_name: str, actor: str, reason: str = "", number: int | None = None) -> PoolVersion:
    """Create a new version with the content of version `number`, or else of the latest other version that worked.
    Raise Pool.DoesNotExist; NotPossible if the version does not exist or is current.
    """
    with transaction.atomic():
        hold_fleet()
        pool = Pool.objects.get(name=pool_name, removed=False)
        target = versions.rollback_target(pool, number)
        if target is None:
            which = "no other configuration that worked" if number is None else f"no version {number}"
            raise NotPossible(f"{pool_name}: {which} is kept")
        made = _return_to(pool, target, actor, reason)
    if made is None:
        raise NotPossible(f"{pool_name} has the configuration of version {target.number} already")
    return made


def _return_to(pool: Pool, target: PoolVersion, actor: str, reason: str) -> PoolVersion | None:
    before = pool_spec(pool)
    given = target.content
    pool.model, pool.kind, pool.engine = given.model, given.kind, given.engine
    pool.halted = ""
    why = f"back to version {target.number}{reason and f': {reason}'}"
    made = versions.record_version(pool, before, pool_spec(pool), actor, why)
    if made is None:
        return None
    pool.save(update_fields=["model", "kind", "engine", "halted"])
    text = f"back to the configuration of version {target.number}"
    events.record_pool(pool, "rollback", text, actor, reason, version=made.number)
    return made


def resume_pool(pool_name: str, actor: str, reason: str = "") -> Pool:
    """Continue a halted change. Raise Pool.DoesNotExist; NotPossible if no change is halted."""
    pool = Pool.objects.get(name=pool_name, removed=False)
    if not Pool.objects.filter(pk=pool.pk).exclude(halted="").update(halted=""):
        raise NotPossible(f"{pool_name}: no change is halted")
    pool.versions.filter(pk=pool.versions.values("pk")[:1]).update(failed="")
    events.record_pool(pool, "resume", "rollout resumed", actor, reason)
    pool.halted = ""
    return pool


def halt_pool(pool: Pool, reason: str, now: dt.datetime) -> bool:
    """Halt a failed change; unchanged instances stay."""
    failed = _mark_failed(pool, reason)
    if failed is None or not Pool.objects.filter(pk=pool.pk, halted="").update(halted=reason):
        return False
    lasted = max(0.0, (now - failed.at).total_seconds())
    events.record_pool(pool, "halt", f"rollout halted: {reason}", seconds=lasted)
    return True


def rollback_failed(pool: Pool, reason: str, now: dt.datetime, roll_back: RollBack) -> bool:
    """Roll back automatically; if that is impossible, halt the change and record why."""
    if _mark_failed(pool, reason) is None:
        return False
    try:
        roll_back(pool.name, reason)
    except NotPossible as error:
        return halt_pool(pool, f"{reason}; not rolled back: {error}", now)
    return True


def _mark_failed(pool: Pool, reason: str) -> PoolVersion | None:
    """Mark the configuration as failed. Return None if the pool has changed since the plan, because then the new
    configuration has not failed."""
    latest = pool.versions.first()
    if latest is None or latest.config_hash != config_hash(pool_spec(pool)):
        return None
    PoolVersion.objects.filter(pk=latest.pk).update(failed=reason)
    return latest
