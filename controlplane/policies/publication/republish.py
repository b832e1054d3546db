"""Bringing Redis in line with the database: after a crash between commit and publication, after a lost Redis."""

from typing import Any

import structlog

from controlplane.policies import selectors
from controlplane.policies.models import PolicyVersion
from controlplane.policies.publication import publish
from fleet.models import Pool
from router.contract.pools import is_ephemeral

log = structlog.get_logger(__name__)


def republish_missing() -> list[str]:
    """One step of the loop; the pools it wrote or removed."""
    # Redis first: a pool that appears in the database in between is then not taken for a stray one.
    listed = publish.pools()
    wanted = dict(Pool.objects.filter(ephemeral_owner="").values_list("name", "policy"))
    live = {policy.name: selectors.live_version(policy) for policy in selectors.policies() if policy.versions.exists()}
    held = publish.published(list(wanted))
    changed = []
    for pool, name in sorted(wanted.items()):
        version = live.get(name)
        if version is not None and not (pool in listed and _holds(held[pool], version)):
            publish.put(pool, name, version.number, version.document, version.sha256)
            changed.append(pool)
    for pool in sorted(_strays(listed - set(wanted))):
        publish.remove(pool)
        changed.append(pool)
    if changed:
        log.info("policy.republished", pools=changed)
    return changed


def _strays(undeclared: set[str]) -> set[str]:
    ephemeral = set(Pool.objects.exclude(ephemeral_owner="").values_list("name", flat=True))
    return {pool for pool in undeclared - ephemeral if not is_ephemeral(pool)}


def _holds(value: dict[str, Any] | None, version: PolicyVersion) -> bool:
    if value is None:
        return False
    held = (value.get("policy"), value.get("version"), value.get("sha256"))
    return held == (version.policy.name, version.number, version.sha256)
