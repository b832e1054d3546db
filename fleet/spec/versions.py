"""Versions of a pool's configuration (model, kind, engine), proven once every instance was ready with it."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db.models import Max, QuerySet
from django.utils import timezone
from msgspec import to_builtins
from msgspec.structs import asdict

from fleet.kinds.engine_config import EngineConfig
from fleet.models import Pool, PoolVersion, State
from fleet.spec.changes import FieldChange, field_changes
from fleet.spec.fleet_spec import PoolSpec, config, config_hash

KEPT = 50  # versions kept per pool


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The state of a pool's current configuration, proven or not, and the version to fall back to."""

    proven: bool = True
    stable_hash: str = ""  # latest other proven version that has not failed since


def version_statuses(pools: Iterable[Pool], hashes: Mapping[str, str]) -> dict[str, VersionStatus]:
    """Return version statuses by pool name. `hashes` are the hashes of the current configurations."""
    names = {pool.pk: pool.name for pool in pools}
    rows = PoolVersion.objects.filter(pool__in=names).values_list("pool_id", "config_hash", "proven_at", "failed")
    by_pool: dict[str, list[tuple[str, bool, bool]]] = defaultdict(list)
    for pk, digest, proven_at, failed in rows:
        by_pool[names[pk]].append((digest, proven_at is not None, bool(failed)))
    return {name: _version_status(versions, hashes[name]) for name, versions in by_pool.items()}


def _version_status(versions: list[tuple[str, bool, bool]], current: str) -> VersionStatus:
    """Return the status. `versions` holds (hash, proven, failed), newest first."""
    stable = next((digest for digest, proven, failed in versions if proven and not failed and digest != current), "")
    return VersionStatus(versions[0][1], stable)


def record_version(pool: Pool, before: PoolSpec | None, after: PoolSpec, actor: str, reason: str) -> PoolVersion | None:
    """Record and return the new version; None if the configuration is unchanged."""
    if not pool.versions.exists() and before is not None:
        _keep(
            pool, before, "", "the configuration before the first change", proven=_all_ready(pool, config_hash(before))
        )
    latest, digest = pool.versions.first(), config_hash(after)
    if latest is not None and latest.config_hash == digest:
        return None
    _expire(pool)
    # A configuration that was once proven stays proven: a failed instance must not halt a rollback.
    proven = worked(pool).filter(config_hash=digest).exists()
    return _keep(pool, after, actor, reason, proven)


def _keep(pool: Pool, spec: PoolSpec, actor: str, reason: str, proven: bool) -> PoolVersion:
    number = (pool.versions.aggregate(most=Max("number"))["most"] or 0) + 1
    return PoolVersion.objects.create(
        pool=pool,
        number=number,
        config=to_builtins(config(spec)),
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


def config_of(pool: Pool, digest: str) -> EngineConfig | None:
    """Return the recorded configuration with that hash."""
    found = pool.versions.filter(config_hash=digest).first()
    return None if found is None else found.content


def prove(pool: Pool, now: dt.datetime) -> PoolVersion | None:
    """Mark the latest version as proven; None if another process did so first."""
    latest = pool.versions.first()
    if latest is None or not PoolVersion.objects.filter(pk=latest.pk, proven_at=None).update(proven_at=now):
        return None
    return latest


def rollback_target(pool: Pool, number: int | None = None) -> PoolVersion | None:
    """Return the target of a rollback: the given version, or the latest other one that worked."""
    if number is not None:
        return pool.versions.filter(number=number).first()
    latest = pool.versions.first()
    if latest is None:
        return None
    return worked(pool).exclude(config_hash=latest.config_hash).first()


def worked(pool: Pool) -> QuerySet[PoolVersion]:
    """Return the versions with which every instance was ready and no change failed."""
    return pool.versions.filter(proven_at__isnull=False, failed="")


@dataclass(frozen=True, slots=True)
class ShownVersion:
    version: PoolVersion
    changes: tuple[FieldChange, ...]  # changes since the previous version
    current: bool


def history(pool: Pool, limit: int = 10) -> list[ShownVersion]:
    """Return the versions, newest first, each with its changes."""
    rows = list(pool.versions.all()[: limit + 1])
    pairs = zip(rows, [*rows[1:], None], strict=False)  # a pool of an experiment has no version
    return [ShownVersion(row, _diff(before, row), row is rows[0]) for row, before in pairs][:limit]


def _diff(before: PoolVersion | None, after: PoolVersion) -> tuple[FieldChange, ...]:
    return () if before is None else field_changes(spec_of(before), spec_of(after))


def spec_of(version: PoolVersion) -> PoolSpec:
    return PoolSpec(name=version.pool.name, **asdict(version.content))
