"""What people do with deliveries. Each function is one transaction, then Redis."""

import secrets
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.audit import services as audit
from controlplane.audit.services import Actor
from controlplane.deliveries import plan as plans
from controlplane.deliveries import schedules, selectors
from controlplane.deliveries.judging import judge_step, stopped, tick
from controlplane.deliveries.models import Approval, Delivery
from controlplane.deliveries.moving import Move, move, move_and_tell, moved, tell
from controlplane.deliveries.plan import InvalidPlan, Plan, Start
from controlplane.deliveries.states import By, State, What
from controlplane.policies import selectors as policies
from controlplane.policies import versions
from controlplane.policies.drafts import services as drafts
from controlplane.policies.errors import Conflict, NothingToPublish, PolicyInvalid
from controlplane.policies.models import Direct, Draft, Policy, PolicyVersion
from router.contract.problem import Problem
from router.policy.schema import document as documents

__all__ = [
    "abort",
    "advance",
    "approve",
    "check_again",
    "check_publish",
    "explain",
    "go_without",
    "judge_step",
    "overtake",
    "pause",
    "propose",
    "reject",
    "resume",
    "set_aside",
    "set_rules",
    "start",
    "stopped",
    "tick",
    "withdraw",
]


# Proposing


def propose(
    policy: Policy,
    plan: object,
    actor: Actor,
    reason: str,
    *,
    if_match: str | None = None,
    again: str = "",
    emergency: str = "",
) -> Delivery:
    """The draft becomes the candidate. `if_match`: the etag of the draft that the caller saw.

    `again`: why a document that was aborted or rolled back is tried again. `emergency`: why an administrator goes
    without approvals.
    """
    reason, now = drafts.check_reason(reason), timezone.now()
    draft = policies.open_draft(policy)
    if draft is None:
        raise drafts.gone(policy, None)
    drafts.check_etag(draft, if_match, draft.upgraded)
    document, live = drafts.check_document(draft.upgraded), policies.live_version(policy)
    drafts.check_base(draft, live)
    if document == live.upgraded:
        raise NothingToPublish(f"the draft equals v{live.number}, which is live: nothing to deliver")
    policy = draft.policy
    policy.refresh_from_db()
    checked = check_plan(policy, plan, now)
    if checked.is_direct:
        check_direct(policy, actor)
    again = check_again(policy, document, checked, again)
    emergency = _check_emergency(actor, emergency)
    try:
        with transaction.atomic():
            made = _store(policy, live, draft, document, checked, actor, reason, again=again, emergency=emergency)
    except IntegrityError:
        raise _in_the_way(policy) from None
    return made


def _store(
    policy: Policy,
    live: PolicyVersion,
    draft: Draft,
    document: dict[str, Any],
    plan: Plan,
    actor: Actor,
    reason: str,
    *,
    again: str,
    emergency: str,
) -> Delivery:
    if not Draft.objects.filter(pk=draft.pk, revision=draft.revision).delete()[0]:
        raise drafts.moved(policy, draft.upgraded)
    candidate = versions.add_version(policy, document, actor, reason, based_on=live.number, draft_etag=draft.etag)
    ready = bool(emergency) or not plan.approvals_needed
    now = timezone.now()
    last = policy.deliveries.order_by("-pk").first()
    made = Delivery.objects.create(
        policy=policy,
        candidate=candidate,
        base=live,
        plan=plans.as_dict(plan),
        plan_sha256=plans.sha256(plan),
        state=State.READY if ready else State.PROPOSED,
        generation=last.generation if last else 0,
        salt=secrets.token_hex(8),
        reason=reason,
        proposed_by=actor.name,
        proposer=actor.person,
        drafters=draft.savers,
        again=again,
        emergency=emergency,
        why=reason,
        by=actor.name,
        ready_at=now if ready else None,
        starts_at=schedules.instant(plan.start.at, plan.start.zone) if plan.start else None,
    )
    after = {"state": made.state, "plan": made.plan, "document": document, "again": again, "emergency": emergency}
    audit.record(actor, "delivery.propose", made.subject, reason, live.upgraded, after)
    tell(made, made.state, 0, reason, actor)
    if emergency:
        tell(made, "emergency", 0, emergency, actor)
    return made


def _in_the_way(policy: Policy) -> Conflict:
    held = selectors.open_delivery(policy)
    if held is None:  # another version took the number
        return Conflict("another version was made a moment earlier: try again", kind="live")
    return open_conflict(held)


def open_conflict(held: Delivery) -> Conflict:
    text = f"v{held.candidate.number} is being delivered ({held.state}); wait for it, or abort it"
    return Conflict(text, kind="open", current=held.etag)


def check_plan(policy: Policy, plan: object, now: datetime) -> Plan:
    """PolicyInvalid with every problem; paths begin with `plan`."""
    names = [pool.name for pool in policies.pools_of(policy)]
    try:
        checked = plans.parse(plan, pools=names, approvals_needed=policy.approvals_needed)
    except InvalidPlan as error:
        raise PolicyInvalid("the plan is not valid", tuple(_below_plan(each) for each in error.problems)) from None
    if checked.start and _is_past(checked.start, now):
        message = "the start has passed"
        raise PolicyInvalid("the plan is not valid", (Problem("plan.start.at", checked.start.at, message),))
    return checked


def _below_plan(problem: Problem) -> Problem:
    path = f"plan.{problem.path}" if problem.path else "plan"
    return Problem(path, problem.value, problem.message, problem.allowed)


def _is_past(start: Start, now: datetime) -> bool:
    return schedules.instant(start.at, start.zone) + timedelta(seconds=start.latest_s) <= now


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


def check_again(policy: Policy, document: dict[str, Any], plan: Plan | None, again: str) -> str:
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


def _check_emergency(actor: Actor, emergency: str) -> str:
    if not emergency:
        return ""
    if not actor.is_admin:
        raise PermissionDenied("only an administrator may go without approvals")
    return drafts.check_reason(emergency, "emergency")


# Approving


def approve(delivery: Delivery, actor: Actor, comment: str = "", *, if_match: str | None = None) -> Delivery:
    """The last approval that was missing makes it ready."""
    _check_etag(delivery, if_match)
    if delivery.state != State.PROPOSED:
        raise Conflict(f"the delivery is {delivery.state}: only a proposed one is approved", kind="state")
    refusal = selectors.approval_refusal(delivery, actor.person)
    if refusal:
        raise PermissionDenied(refusal)
    needed = plans.stored(delivery.plan).approvals_needed
    with transaction.atomic():
        _add_approval(delivery, actor, comment)
        if selectors.is_approved(delivery, needed):
            return move(delivery, Move(What.APPROVE, By.PERSON, actor, comment))
        _count_approval(delivery, actor, comment)
    delivery.refresh_from_db()
    return delivery


def _add_approval(delivery: Delivery, actor: Actor, comment: str) -> None:
    approval = Approval(
        delivery=delivery,
        person=actor.person,
        actor_name=actor.name,
        sha256=selectors.digest(delivery),
        comment=comment[: drafts.REASON_MAX],
    )
    try:
        with transaction.atomic():
            approval.save()
    except IntegrityError:
        raise PermissionDenied(f"{actor.person} has approved it already") from None


def _count_approval(delivery: Delivery, actor: Actor, comment: str) -> None:
    """One of several: the state stays, the revision does not, so that two last ones cannot both be first."""
    claimed = Delivery.objects.filter(pk=delivery.pk, revision=delivery.revision).update(revision=delivery.revision + 1)
    if not claimed:
        raise moved(delivery)
    audit.record(actor, "delivery.approve", delivery.subject, comment, None, {"sha256": selectors.digest(delivery)})


def go_without(delivery: Delivery, actor: Actor, emergency: str, *, if_match: str | None = None) -> Delivery:
    """An administrator goes without the approvals that are missing."""
    _check_etag(delivery, if_match)
    why = _check_emergency(actor, emergency or " ")
    return move(delivery, Move(What.APPROVE, By.PERSON, actor, why, changes={"emergency": why}))


def reject(delivery: Delivery, actor: Actor, reason: str, *, if_match: str | None = None) -> Delivery:
    return _by_person(delivery, What.REJECT, actor, drafts.check_reason(reason), if_match)


def withdraw(delivery: Delivery, actor: Actor, reason: str = "", *, if_match: str | None = None) -> Delivery:
    """The candidate becomes a draft again. Only its proposer, or an administrator."""
    if actor.person != delivery.proposer and not actor.is_admin:
        raise PermissionDenied(f"{delivery.proposer} proposed the delivery: only they withdraw it; reject or abort it")
    return _by_person(delivery, What.WITHDRAW, actor, reason, if_match)


# Steering


def start(delivery: Delivery, actor: Actor, reason: str = "", *, if_match: str | None = None) -> Delivery:
    """Approvals, base and freezes are looked at here, not only at the proposal."""
    _check_etag(delivery, if_match)
    check_start(delivery, timezone.now())
    return _by_person(delivery, What.START, actor, reason, if_match)


def check_start(delivery: Delivery, now: datetime) -> None:
    live = policies.live_version(delivery.policy)
    if live.number != delivery.base.number:
        text = f"v{live.number} is live by now; the delivery was proposed against v{delivery.base.number}"
        raise Conflict(text, kind="live", current=live.etag)
    if not selectors.is_approved(delivery, plans.stored(delivery.plan).approvals_needed):
        raise Conflict("approvals are missing", kind="state", current=delivery.etag)
    check_freeze(delivery.policy, now)


def check_freeze(policy: Policy, now: datetime) -> None:
    frozen = selectors.freeze_in_force(policy, now)
    if frozen is not None:
        rule, each = frozen
        raise Conflict(f"the freeze {rule.name} is in force until {each.end:%Y-%m-%d %H:%M} UTC", kind="freeze")


def pause(delivery: Delivery, actor: Actor, reason: str = "", *, if_match: str | None = None) -> Delivery:
    """The share stays, the step does not go on."""
    return _by_person(delivery, What.PAUSE, actor, reason, if_match)


def set_aside(delivery: Delivery, actor: Actor, reason: str = "", *, if_match: str | None = None) -> Delivery:
    """Paused at share 0."""
    return _by_person(delivery, What.SET_ASIDE, actor, reason, if_match)


def resume(delivery: Delivery, actor: Actor, reason: str, *, if_match: str | None = None) -> Delivery:
    """The same step once more, everything counted anew."""
    reason = drafts.check_reason(reason)
    check_freeze(delivery.policy, timezone.now())
    return _by_person(delivery, What.RESUME, actor, reason, if_match)


def advance(delivery: Delivery, actor: Actor, reason: str, *, if_match: str | None = None) -> Delivery:
    """To the next step, whatever the guards say; failing ones abort there as well."""
    reason = drafts.check_reason(reason)
    check_freeze(delivery.policy, timezone.now())
    return _by_person(delivery, What.ADVANCE, actor, reason, if_match)


def abort(delivery: Delivery, actor: Actor, reason: str = "", *, if_match: str | None = None) -> Delivery:
    """Everything back on live; while it bakes, back on the old version. The reason may follow: `explain`."""
    return _by_person(delivery, What.ABORT, actor, reason, if_match)


def explain(delivery: Delivery, actor: Actor, reason: str) -> Delivery:
    """The reason of an action that could not wait for it."""
    reason = drafts.check_reason(reason)
    with transaction.atomic():
        if not Delivery.objects.filter(pk=delivery.pk, revision=delivery.revision).update(
            revision=delivery.revision + 1, why=reason
        ):
            raise moved(delivery)
        audit.record(actor, "delivery.explain", delivery.subject, reason, {"why": delivery.why}, {"why": reason})
    delivery.refresh_from_db()
    return delivery


def overtake(policy: Policy, what: What, actor: Actor, why: str, *, allowed: bool) -> None:
    """End the open delivery, in the transaction of the caller, who makes another version live."""
    held = selectors.open_delivery(policy)
    if held is None:
        return
    if not allowed:
        raise open_conflict(held)
    move(held, Move(what, By.PERSON, actor, why))


def _by_person(delivery: Delivery, what: What, actor: Actor, reason: str, if_match: str | None) -> Delivery:
    _check_etag(delivery, if_match)
    reason = reason.replace("\x00", "").strip()[: drafts.REASON_MAX]
    return move_and_tell(delivery, Move(what, By.PERSON, actor, reason))


def _check_etag(delivery: Delivery, if_match: str | None) -> None:
    if if_match is not None and if_match != delivery.etag:
        raise moved(delivery)


# Rules


def set_rules(policy: Policy, actor: Actor, reason: str, *, direct: str, approvals_needed: int) -> Policy:
    reason = drafts.check_reason(reason)
    problems = []
    if direct not in Direct.values:
        problems.append(Problem("direct", direct, "not one of the allowed values", ", ".join(Direct.values)))
    low, high = plans.LIMITS["approvals.needed"]
    if isinstance(approvals_needed, bool) or not low <= approvals_needed <= high:
        problems.append(Problem("approvals_needed", approvals_needed, "out of range", f"{low:g} to {high:g}"))
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
