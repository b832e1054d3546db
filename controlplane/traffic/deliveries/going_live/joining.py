"""Pools that change their policy, and new pools: for their requests, this is also a publication. Clients request a pool
by its name or its model, so a pool takes over the requests of every pool with the same name or model, even one that was
recently removed or given another model. The rules of those pools' policies apply together with the rules of the policy
that the pool joins.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from controlplane.people.notices.services import notify
from controlplane.traffic.deliveries.going_live.rules import (
    Change,
    Refusal,
    Way,
    check_emergency,
    record_emergency,
    refusals,
    said,
)
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies import versions
from controlplane.traffic.policies.errors import RulesForbid
from controlplane.traffic.policies.models import FormerPool, Policy
from fleet.spec.fleet_spec import PoolSpec
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import Problem

REMEMBERED = timedelta(days=30)  # time for which the rules of a removed pool's policy still apply


@dataclass(frozen=True, slots=True)
class AskedPool:
    """A pool that clients request, or recently requested."""

    name: str
    model: str
    policy: str


@dataclass(frozen=True, slots=True)
class Join:
    """A pool that would begin to use this policy."""

    index: int  # index of the pool in the document
    pool: str
    policy: str
    left: tuple[str, ...]  # policies that have decided the requests so far; empty if the pool takes over none
    returns: bool = False  # a rollback to a configuration that worked with that policy


def joins(present: Iterable[AskedPool], former: Iterable[AskedPool], wanted: Iterable[PoolSpec]) -> list[Join]:
    """Return the pools of a document that are new, or have changed their policy or model, each with the policies that
    routed its name or model before."""
    by_name = {pool.name: pool for pool in present}
    served = [*by_name.values(), *former]
    found = []
    for index, pool in enumerate(wanted):
        before = by_name.get(pool.name)
        if before is None or (before.policy, before.model) != (pool.policy, pool.model):
            found.append(Join(index, pool.name, pool.policy, _left(served, pool)))
    return found


def _left(served: Iterable[AskedPool], pool: PoolSpec) -> tuple[str, ...]:
    asked_for = {pool.name, pool.model}
    policies_before = {other.policy for other in served if not asked_for.isdisjoint((other.name, other.model))}
    return tuple(sorted(policies_before - {pool.policy}))


def former_pools(now: datetime) -> list[AskedPool]:
    rows = FormerPool.objects.filter(removed_at__gt=now - REMEMBERED)
    return [AskedPool(*row) for row in rows.values_list("name", "model", "policy")]


def remember(left_behind: Iterable[PoolSpec], now: datetime) -> None:
    FormerPool.objects.filter(removed_at__lte=now - REMEMBERED).delete()
    FormerPool.objects.bulk_create(
        FormerPool(name=pool.name, model=pool.model, policy=pool.policy, removed_at=now) for pool in left_behind
    )


def check_joins(found: Iterable[Join], actor: Actor, emergency: str) -> str:
    """Check the joins, and return the checked reason of an emergency. RulesForbid names every pool and the reason. Call
    this in the transaction of the change."""
    emergency = check_emergency(actor, emergency.strip())
    refused = [(join, refusal) for join in found for refusal in _refusals(join, actor, emergency)]
    if refused:
        problems = [Problem(f"spec.pools[{join.index}].policy", join.policy, said(why)) for join, why in refused]
        raise RulesForbid(problems, [why for _, why in refused])
    return emergency


def _refusals(join: Join, actor: Actor, emergency: str) -> list[Refusal]:
    versions.lock(join.policy, *join.left)
    of_joined, of_left = _ways(join)
    known = {policy.name: policy for policy in Policy.objects.filter(name__in=(join.policy, *join.left))}
    joined = known.pop(join.policy, None)
    if joined is None or not joined.versions.exists():
        return []  # without a version, the control plane itself creates the first one
    document = policies.live_version(joined).upgraded
    asked = [Change(way, joined, actor, document, emergency=emergency) for way in of_joined]
    asked += [Change(of_left, left, actor, document, emergency=emergency) for left in known.values()]
    texts: Mapping[str, Refusal] = {said(refusal): refusal for change in asked for refusal in refusals(change)}
    return list(texts.values())


def _ways(join: Join) -> tuple[tuple[Way, ...], Way]:
    """Return the ways of joining the new policy (none for a pool that returns) and of leaving the others."""
    if join.returns:
        return (), Way.RETURN
    return (Way.JOIN if join.left else Way.ADD_POOL,), Way.LEAVE


def record_joins(found: Iterable[Join], actor: Actor, reason: str, emergency: str) -> None:
    """Write an audit entry and a notice for each pool that takes over requests, in the change's transaction."""
    for join in found:
        policy = Policy.objects.filter(name=join.policy).first()
        if not join.left or policy is None:
            continue
        subject, left = f"pool {join.pool}", ", ".join(join.left)
        version = policies.live_version(policy).number
        audit.record(actor, "policy.join", subject, reason, {"policy": left}, {"policy": policy.name, "v": version})
        facts: JsonObject = {"pools": [join.pool], "policy": policy.name, "version": version, "left": [*join.left]}
        text = f"{subject}: {left} → {policy.name} v{version} by {actor.name}{reason and f': {reason}'}"
        notify("policy.pool_joined", subject, text, facts, actor.name)
        if emergency:
            record_emergency(policy, subject, actor, emergency)
