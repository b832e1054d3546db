"""The rules of a policy about what goes live and how, checked when somebody wants it to."""

from datetime import datetime

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils import timezone

from controlplane.audit import services as audit
from controlplane.audit.services import Actor
from controlplane.deliveries import selectors
from controlplane.deliveries.plan import Plan
from controlplane.deliveries.plan_reader import LIMITS
from controlplane.policies.drafts import services as drafts
from controlplane.policies.errors import Conflict, PolicyInvalid
from controlplane.policies.models import Direct, Policy
from router.contract.json_value import JsonObject
from router.contract.problem import Problem
from router.policy.schema import document as documents


def check_publish(policy: Policy, actor: Actor) -> None:
    """Whether a draft may go live without a delivery, now and by this actor."""
    check_direct(policy, actor)
    needed = Policy.objects.values_list("approvals_needed", flat=True).get(pk=policy.pk)
    if needed:
        raise PermissionDenied(f"policy {policy.name} needs {needed} approvals: propose a delivery")
    check_freeze(policy, timezone.now())


def check_direct(policy: Policy, actor: Actor) -> None:
    """PermissionDenied when the policy wants a delivery in steps of this actor."""
    direct = Policy.objects.values_list("direct", flat=True).get(pk=policy.pk)
    if direct == Direct.NEVER:
        raise PermissionDenied(f"policy {policy.name} goes live by delivery only: propose a plan with a canary")
    if direct == Direct.ADMIN and not actor.is_admin:
        raise PermissionDenied(
            f"only administrators publish policy {policy.name} directly: propose a plan with a canary"
        )


def check_again(policy: Policy, document: JsonObject, plan: Plan | None, again: str) -> str:
    """`plan`: None to publish without one."""
    failed = selectors.failed_before(policy, documents.sha256(document))
    if failed is None:
        return ""
    said = f"v{failed.candidate.number} had this document and was {failed.state.replace('_', ' ')}: {failed.why}"
    if plan is None or not plan.from_shadow_on:
        message = f"{said}; deliver it from a shadow step on, with a canary"
        raise PolicyInvalid("this document has failed before", (Problem("plan.steps", None, message),))
    if not again.strip():
        raise PolicyInvalid("this document has failed before", (Problem("again", again, f"{said}; say why again"),))
    return drafts.check_reason(again, "again")


def check_emergency(actor: Actor, emergency: str) -> str:
    if not emergency:
        return ""
    if not actor.is_admin:
        raise PermissionDenied("only an administrator may go without approvals")
    return drafts.check_reason(emergency, "emergency")


def check_freeze(policy: Policy, now: datetime) -> None:
    frozen = selectors.freeze_in_force(policy, now)
    if frozen is not None:
        rule, each = frozen
        raise Conflict(f"the freeze {rule.name} is in force until {each.end:%Y-%m-%d %H:%M} UTC", kind="freeze")


def set_rules(policy: Policy, actor: Actor, reason: str, *, direct: str, approvals_needed: int) -> Policy:
    reason = drafts.check_reason(reason)
    problems = []
    if direct not in Direct.values:
        problems.append(Problem("direct", direct, "not one of the allowed values", ", ".join(Direct.values)))
    low, high = LIMITS["approvals.needed"]
    if isinstance(approvals_needed, bool) or not low <= approvals_needed <= high:
        problems.append(Problem("approvals_needed", approvals_needed, "out of range", f"{low:,.10g} to {high:,.10g}"))
    if problems:
        raise PolicyInvalid("the rules are not valid", tuple(problems))
    policy.refresh_from_db()
    before = {"direct": policy.direct, "approvals_needed": policy.approvals_needed}
    after = {"direct": direct, "approvals_needed": approvals_needed}
    with transaction.atomic():
        Policy.objects.filter(pk=policy.pk).update(**after)
        audit.record(actor, "delivery.rules", f"policy {policy.name}", reason, before, after)
    policy.refresh_from_db()
    return policy
