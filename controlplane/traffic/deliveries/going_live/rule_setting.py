"""Sets the rules of a policy, and chooses those of a new one."""

from collections.abc import Mapping

from controlplane.common.as_seen import held
from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from controlplane.traffic.deliveries.plan.reader import NUMBERS
from controlplane.traffic.policies.drafts import services as drafts
from controlplane.traffic.policies.models import Direct, Policy
from router.contract.fields import Field, accept
from router.contract.problem import InvalidInput, Problem

RULE_FIELDS: Mapping[str, Field] = {
    "direct": Field(name="direct", kind="text", fits=Direct.values.__contains__, words=", ".join(Direct.values)),
    "approvals_needed": NUMBERS["approvals.needed"],
    "least_share": NUMBERS["canary.share"],
    "least_for_s": NUMBERS["canary.for_s"],
    "least_bake_s": NUMBERS["full.bake_s"],
}
FIELDS = tuple(RULE_FIELDS)


def set_rules(policy: Policy, actor: Actor, reason: str, *, if_match: str | None = None, **rules: object) -> Policy:
    """Set the given rules; rules that are None stay as they are. InvalidInput has every problem; raises
    ChangedMeanwhile."""
    reason = drafts.check_reason(reason)
    given = {name: value for name, value in rules.items() if value is not None}
    taken = {name: accept(RULE_FIELDS[name], value, name) for name, value in given.items()}
    problems = tuple(value for value in taken.values() if isinstance(value, Problem))
    if problems:
        raise InvalidInput("the rules are not valid", problems)
    with held(Policy.objects.filter(pk=policy.pk), f"policy {policy.name}", if_match) as row:
        before = {name: getattr(row, name) for name in FIELDS}
        Policy.objects.filter(pk=policy.pk).update(**taken)
        audit.record(actor, "delivery.rules", f"policy {policy.name}", reason, before, {**before, **taken})
    policy.refresh_from_db()
    return policy


def strictest() -> dict[str, object]:
    """The rules of a new policy: the strictest of any policy, so that a new name does not bypass a rule."""
    rows = list(Policy.objects.values(*FIELDS))
    if not rows:
        return {}
    directs = {row.pop("direct") for row in rows}
    direct = next(word for word in (Direct.NEVER, Direct.ADMIN, Direct.ALLOWED) if word in directs)
    return {"direct": direct, **{name: max(row[name] for row in rows) for name in FIELDS[1:]}}
