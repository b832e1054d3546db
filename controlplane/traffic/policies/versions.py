"""Adds versions to a policy and makes one live, in the caller's transaction."""

from typing import Any

from django.db.models import F, Max

from controlplane.people.audit.services import Actor
from controlplane.traffic.policies import served
from controlplane.traffic.policies.models import Policy, PolicyVersion
from router.contract.values.json_value import JsonObject
from router.policy.schema import document as documents


def next_number(policy: Policy) -> int:
    """Return the next number; candidates that never went live keep theirs."""
    highest: int | None = policy.versions.aggregate(highest=Max("number"))["highest"]
    return (highest or 0) + 1


def add_version(policy: Policy, document: JsonObject, actor: Actor, reason: str, **links: Any) -> PolicyVersion:
    """Add a version. Raise IntegrityError if a concurrent call took the number, InvalidInput if the document could not
    serve one of the policy's pools."""
    served.check(policy, document)
    return PolicyVersion.objects.create(
        policy=policy,
        number=next_number(policy),
        document=document,
        sha256=documents.sha256(document),
        reason=reason,
        actor_kind=actor.kind,
        actor_name=actor.name,
        **links,
    )


def go_live(version: PolicyVersion, instead_of: int) -> bool:
    """Make the version live. Return False if `instead_of` is no longer the live one."""
    return bool(Policy.objects.filter(pk=version.policy_id, live=instead_of).update(live=version.number))


def lock(*names: str) -> None:
    """Lock these policies, so that the version used by their pools cannot change until the transaction ends."""
    for name in sorted(names):  # sorted, to prevent deadlocks
        Policy.objects.filter(name=name).update(live=F("live"))
