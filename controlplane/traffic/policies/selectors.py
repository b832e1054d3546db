"""Reads policies, their versions and drafts."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import F, QuerySet

from controlplane.traffic.policies.errors import NoSuchPolicy
from controlplane.traffic.policies.models import Draft, Policy, PolicyVersion
from fleet.models import Pool
from fleet.spec.fleet_spec import SERVE

NUMBER_MAX = 2**31 - 1  # largest integer that every database can store


def policies() -> QuerySet[Policy]:
    return Policy.objects.order_by("name")


def published_names() -> set[str]:
    """Return the names of policies that have a version."""
    return set(PolicyVersion.objects.values_list("policy__name", flat=True).distinct())


def orphans() -> list[Pool]:
    """Return pools that name a policy without a version."""
    return list(Pool.objects.filter(ephemeral_owner="").exclude(policy__in=published_names()).order_by("name"))


def policy(name: str) -> Policy:
    row = Policy.objects.filter(name=name).first()
    if row is None:
        raise NoSuchPolicy(f"there is no policy {name}")
    return row


def live_version(policy: Policy) -> PolicyVersion:
    """Return the live version; every policy has one from the moment of its creation."""
    # policy.live may have changed since the row was read and is therefore not used.
    version = PolicyVersion.objects.select_related("policy").filter(policy=policy.pk, number=F("policy__live")).first()
    if version is None:
        raise NoSuchPolicy(f"policy {policy.name} has no version")
    return version


def history(policy: Policy) -> QuerySet[PolicyVersion]:
    """Return every version, newest first, including candidates that never went live."""
    return policy.versions.select_related("policy", "delivery").order_by("-number")


def once_live(policy: Policy) -> QuerySet[PolicyVersion]:
    """Return versions that were live, latest first. Their numbers give the order, because no version goes live past an
    open candidate.
    """
    return history(policy).exclude(delivery__isnull=False, delivery__promoted_at=None)


def before(version: PolicyVersion) -> PolicyVersion | None:
    """Return the version that was live before this one; for an open candidate, the live one."""
    return once_live(version.policy).filter(number__lt=version.number).first()


def rollback_target(live: PolicyVersion) -> PolicyVersion | None:
    """Return the version to roll back to, if any: the one before the first publication of the live document."""
    origin = live
    while origin.rollback_of is not None:
        origin = version(live.policy, origin.rollback_of)
    return before(origin)


def version(policy: Policy, number: int) -> PolicyVersion:
    row = policy.versions.filter(number=number).first() if number <= NUMBER_MAX else None
    if row is None:
        raise NoSuchPolicy(f"policy {policy.name} has no version {number}")
    return row


def published_from(policy: Policy, draft_etag: str) -> PolicyVersion | None:
    """Return the version published from this revision of a draft."""
    return policy.versions.filter(draft_etag=draft_etag).first() if draft_etag else None


def open_draft(policy: Policy) -> Draft | None:
    return Draft.objects.filter(policy=policy).select_related("policy").first()


def declared_pools(policy: Policy) -> list[Pool]:
    """Return the pools that name this policy, without those of experiments."""
    return list(Pool.objects.filter(policy=policy.name, ephemeral_owner="").order_by("name"))


def pools_of(policy: Policy) -> list[Pool]:
    """Return the declared pools whose requests the policy decides; no router serves an observed pool."""
    return [pool for pool in declared_pools(policy) if pool.mode == SERVE]


@dataclass(frozen=True, slots=True)
class Scope:
    pools: tuple[str, ...]
    instances: int

    @property
    def words(self) -> str:
        if not self.pools:
            return "no pool uses this policy yet"
        noun = "pool" if len(self.pools) == 1 else "pools"
        count = f"{self.instances} instance{'' if self.instances == 1 else 's'}"
        return f"{noun} {listed(self.pools)}, {count}, 100 %"


def scope_of(policy: Policy) -> Scope:
    pools = pools_of(policy)
    return Scope(tuple(pool.name for pool in pools), sum(pool.replicas for pool in pools))


def listed(names: Iterable[str]) -> str:
    """Join names as "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
