"""Reading policies."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import redis
from django.db.models import QuerySet

from controlplane.policies.errors import NoSuchPolicy
from controlplane.policies.models import Draft, Policy, PolicyVersion
from controlplane.policies.publication.acks import live_routers
from fleet.models import Pool
from fleet.redis import connect
from router.contract import codec, redis_keys

NUMBER_MAX = 2**31 - 1  # what every database can be asked for


def policies() -> QuerySet[Policy]:
    return Policy.objects.order_by("name")


def published_names() -> set[str]:
    """Policies that routers can be given: those with a version."""
    return set(PolicyVersion.objects.values_list("policy__name", flat=True).distinct())


def orphans() -> list[Pool]:
    """Pools that name a policy which has no version."""
    return list(Pool.objects.filter(ephemeral_owner="").exclude(policy__in=published_names()).order_by("name"))


def policy(name: str) -> Policy:
    found = Policy.objects.filter(name=name).first()
    if found is None:
        raise NoSuchPolicy(f"there is no policy {name}")
    return found


def live_version(policy: Policy) -> PolicyVersion:
    """The version with the highest number; every policy has one from its creation on."""
    found = policy.versions.order_by("-number").first()
    if found is None:
        raise NoSuchPolicy(f"policy {policy.name} has no version")
    return found


def history(policy: Policy) -> QuerySet[PolicyVersion]:
    return policy.versions.order_by("-number")


def version(policy: Policy, number: int) -> PolicyVersion:
    found = policy.versions.filter(number=number).first() if number <= NUMBER_MAX else None
    if found is None:
        raise NoSuchPolicy(f"policy {policy.name} has no version {number}")
    return found


def published_from(policy: Policy, draft_etag: str) -> PolicyVersion | None:
    """The version that this very revision of a draft has become."""
    return policy.versions.filter(draft_etag=draft_etag).first() if draft_etag else None


def open_draft(policy: Policy) -> Draft | None:
    return Draft.objects.filter(policy=policy).select_related("policy").first()


def pools_of(policy: Policy) -> list[Pool]:
    """Pools that are declared to run this policy; those of experiments bring their own."""
    return list(Pool.objects.filter(policy=policy.name, ephemeral_owner="").order_by("name"))


@dataclass(frozen=True, slots=True)
class RouterVersion:
    """Which version of a pool's policy one live router runs."""

    router: str
    pool: str
    version: int | None  # None: the router has not taken the pool up yet


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """How far a version has got, for "3/3 routers"."""

    running: tuple[RouterVersion, ...]
    behind: tuple[RouterVersion, ...]
    redis_away: bool = False

    @property
    def routers(self) -> int:
        return len({r.router for r in (*self.running, *self.behind)})

    @property
    def current(self) -> int:
        return self.routers - len({r.router for r in self.behind})


def acknowledgement(policy_name: str, number: int, pools: Iterable[str]) -> Acknowledgement:
    """Live routers and whether they run version `number` of the policy in each of `pools`, as they said last."""
    try:
        rows = _router_versions(policy_name, list(pools))
    except redis.RedisError:
        return Acknowledgement((), (), redis_away=True)
    running = tuple(row for row in rows if row.version == number)
    return Acknowledgement(running, tuple(row for row in rows if row.version != number))


def _router_versions(policy_name: str, pools: list[str]) -> list[RouterVersion]:
    names = live_routers()
    if not names or not pools:
        return []
    raw: Any = connect().mget([redis_keys.router_key(name) for name in names])
    rows = []
    for name, value in zip(names, raw, strict=True):
        known = (codec.decode(value) or {}).get("pools") or {}
        for pool in pools:
            entry = known.get(pool) or {}
            rows.append(RouterVersion(name, pool, entry.get("version") if entry.get("policy") == policy_name else None))
    return rows
