"""The rules of a policy: setting them, and those that a new policy begins with."""

from collections.abc import Mapping

from django.db import transaction

from controlplane.audit import services as audit
from controlplane.audit.services import Actor
from controlplane.deliveries.plan_reader import LIMITS
from controlplane.policies.drafts import services as drafts
from controlplane.policies.errors import PolicyInvalid
from controlplane.policies.models import Direct, Policy
from router.contract.problem import Problem

RULE_LIMITS: Mapping[str, tuple[float, float]] = {
    "approvals_needed": LIMITS["approvals.needed"],
    "least_share": LIMITS["canary.share"],
    "least_for_s": LIMITS["canary.for_s"],
    "least_bake_s": LIMITS["full.bake_s"],
}
FIELDS = ("direct", *RULE_LIMITS)


def set_rules(policy: Policy, actor: Actor, reason: str, **rules: object) -> Policy:
    """Those that are left out, or None, stay as they are. PolicyInvalid with every problem."""
    reason = drafts.check_reason(reason)
    given = {name: value for name, value in rules.items() if value is not None}
    problems = tuple(problem for name, value in given.items() if (problem := _problem(name, value)))
    if problems:
        raise PolicyInvalid("the rules are not valid", problems)
    policy.refresh_from_db()
    before = {name: getattr(policy, name) for name in FIELDS}
    with transaction.atomic():
        Policy.objects.filter(pk=policy.pk).update(**given)
        audit.record(actor, "delivery.rules", f"policy {policy.name}", reason, before, {**before, **given})
    policy.refresh_from_db()
    return policy


def _problem(name: str, value: object) -> Problem | None:
    if name == "direct":
        wrong = value not in Direct.values
        return Problem(name, value, "not one of the allowed values", ", ".join(Direct.values)) if wrong else None
    low, high = RULE_LIMITS[name]
    kinds = (int, float) if name == "least_share" else (int,)
    if not isinstance(value, bool) and isinstance(value, kinds) and low <= value <= high:
        return None
    return Problem(name, value, "out of range", f"{low:,.10g} to {high:,.10g}")


def strictest() -> dict[str, object]:
    """The rules of a new policy: of those that exist, the strictest each, so that a new name walks around none."""
    rows = list(Policy.objects.values(*FIELDS))
    if not rows:
        return {}
    directs = {row.pop("direct") for row in rows}
    direct = next(word for word in (Direct.NEVER, Direct.ADMIN, Direct.ALLOWED) if word in directs)
    return {"direct": direct, **{name: max(row[name] for row in rows) for name in RULE_LIMITS}}
