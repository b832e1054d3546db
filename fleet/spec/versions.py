"""Versions of a pool's configuration: kept at each change, proven once every instance was ready, gone back to.

Only what an engine is started from is a version (model, kind, engine); the number of replicas is not.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Max
from django.utils import timezone

from fleet.models import Pool, PoolVersion, State
from fleet.spec.changes import FieldChange, field_changes
from fleet.spec.fleet_spec import PoolSpec, config, config_hash

KEPT = 50  # of one pool


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """What the versions of a pool say of its present configuration."""

    proven: bool = True
    stable_hash: str = ""  # the latest other one that was proven and has not failed since


def version_statuses(pools: Iterable[Pool], hashes: Mapping[str, str]) -> dict[str, VersionStatus]:
    """By the pool's name; `hashes`: of its present configuration."""
    names = {pool.pk: pool.name for pool in pools}
    rows = PoolVersion.objects.filter(pool__in=names).values_list("pool_id", "config_hash", "proven_at", "failed")
    by_pool: dict[str, list[tuple[str, bool, bool]]] = defaultdict(list)
    for pk, digest, proven_at, failed in rows:
        by_pool[names[pk]].append((digest, proven_at is not None, bool(failed)))
    return {name: _version_status(versions, hashes[name]) for name, versions in by_pool.items()}


def _version_status(versions: list[tuple[str, bool, bool]], present: str) -> VersionStatus:
    """`versions`, newest first: (hash, proven, failed)."""
    stable = next((digest for digest, proven, failed in versions if proven and not failed and digest != present), "")
    return VersionStatus(versions[0][1], stable)


def record_version(pool: Pool, before: PoolSpec | None, after: PoolSpec, actor: str, reason: str) -> PoolVersion | None:
    """A new version when the configuration is another one; None when it is the same."""
    if not pool.versions.exists() and before is not None:
        _keep(pool, before, "", "as it was before the first change", proven=_all_ready(pool, config_hash(before)))
    latest, digest = pool.versions.first(), config_hash(after)
    if latest is not None and latest.config_hash == digest:
        return None
    _expire(pool)
    # What was proven before need not prove itself again: a rollback that fails must not be halted for it.
    proven = pool.versions.filter(config_hash=digest, proven_at__isnull=False, failed="").exists()
    return _keep(pool, after, actor, reason, proven)


def _keep(pool: Pool, spec: PoolSpec, actor: str, reason: str, proven: bool) -> PoolVersion:
    number = (pool.versions.aggregate(most=Max("number"))["most"] or 0) + 1
    return PoolVersion.objects.create(
        pool=pool,
        number=number,
        config=config(spec),
        config_hash=config_hash(spec),
        actor=actor,
        reason=reason,
        proven_at=timezone.now() if proven else None,
    )


def _all_ready(pool: Pool, digest: str) -> bool:
    states = list(pool.instances.filter(retired="").values_list("state", "config_hash"))
    return bool(states) and all(state == (State.READY, digest) for state in states)


def _expire(pool: Pool) -> None:
    old = pool.versions.values_list("pk", flat=True)[KEPT - 1 :]
    PoolVersion.objects.filter(pk__in=list(old)).delete()


def config_of(pool: Pool, digest: str) -> dict[str, Any] | None:
    """The configuration with that hash; None when none is kept."""
    found = pool.versions.filter(config_hash=digest).first()
    return None if found is None else dict(found.config)


def prove(pool: Pool, now: dt.datetime) -> PoolVersion | None:
    """The change is complete: who did it first gets the version."""
    latest = pool.versions.first()
    if latest is None or not PoolVersion.objects.filter(pk=latest.pk, proven_at=None).update(proven_at=now):
        return None
    return latest


def earlier(pool: Pool, number: int | None = None) -> PoolVersion | None:
    """What a rollback goes back to: that version, or the latest other configuration that worked (else any other)."""
    if number is not None:
        return pool.versions.filter(number=number).first()
    latest = pool.versions.first()
    if latest is None:
        return None
    others = pool.versions.filter(failed="").exclude(config_hash=latest.config_hash)
    return others.filter(proven_at__isnull=False).first() or others.first()


@dataclass(frozen=True, slots=True)
class ShownVersion:
    version: PoolVersion
    changes: tuple[FieldChange, ...]  # against the version before
    present: bool


def history(pool: Pool, limit: int = 10) -> list[ShownVersion]:
    """Newest first, each with what it changed."""
    rows = list(pool.versions.all()[: limit + 1])
    pairs = zip(rows, [*rows[1:], None], strict=True)
    return [ShownVersion(row, _diff(before, row), row is rows[0]) for row, before in pairs][:limit]


def _diff(before: PoolVersion | None, after: PoolVersion) -> tuple[FieldChange, ...]:
    return () if before is None else field_changes(spec_of(before), spec_of(after))


def spec_of(version: PoolVersion) -> PoolSpec:
    return PoolSpec(name=version.pool.name, **version.config)
