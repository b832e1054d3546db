"""New versions of a policy, and which one is live. Inside the caller's transaction."""

from typing import Any

from django.db.models import F, Max

from controlplane.audit.services import Actor
from controlplane.policies import served
from controlplane.policies.models import Policy, PolicyVersion
from router.contract.json_value import JsonObject
from router.policy.schema import document as documents


def next_number(policy: Policy) -> int:
    """Numbers of candidates that never went live stay taken."""
    highest: int | None = policy.versions.aggregate(highest=Max("number"))["highest"]
    return (highest or 0) + 1


def add_version(policy: Policy, document: JsonObject, actor: Actor, reason: str, **links: Any) -> PolicyVersion:
    """Of two at the same time the database lets one have the number; the other gets IntegrityError.

    PolicyInvalid when it could not serve a pool of the policy.
    """
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
    """False when another version than `instead_of` is live by now."""
    return bool(Policy.objects.filter(pk=version.policy_id, live=instead_of).update(live=version.number))


def hold(*names: str) -> None:
    """Until the transaction ends, no one else can change what these policies' pools route by."""
    for name in sorted(names):  # in one order, so that two do not wait for each other
        Policy.objects.filter(name=name).update(live=F("live"))
