"""Proposes a draft as the candidate of a delivery."""

import secrets
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from controlplane.traffic.deliveries import prometheus, selectors
from controlplane.traffic.deliveries.going_live.rules import Change, Way, check, open_conflict, record_emergency
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.moving import tell
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.types import Plan, Start
from controlplane.traffic.deliveries.states import State
from controlplane.traffic.deliveries.timing import schedules
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies import versions
from controlplane.traffic.policies.drafts import services as drafts
from controlplane.traffic.policies.drafts.versioned import claim, draft_to_publish
from controlplane.traffic.policies.errors import Conflict, NothingToPublish
from controlplane.traffic.policies.models import Draft, Policy, PolicyVersion
from router.contract.values.problem import InvalidInput, Problem


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
    """Make the draft the candidate of a new delivery. `if_match` is the ETag of the draft that the caller saw. `again`
    is the reason for another attempt with a document that was aborted or rolled back. `emergency` is an administrator's
    reason for bypassing the rules.
    """
    reason, now = drafts.check_reason(reason), timezone.now()
    draft, live = draft_to_publish(drafts.versioned(policy), if_match)
    document = drafts.check_document(draft.upgraded)
    if document == live.upgraded:
        raise NothingToPublish(f"the draft equals v{live.number}, which is live: nothing to deliver")
    policy = draft.policy
    policy.refresh_from_db()
    checked = check_plan(policy, plan, now)
    change = Change(Way.PROPOSE, policy, actor, document, checked, again=again.strip(), emergency=emergency.strip())
    check(change)
    unanswered = prometheus.problems(checked, policy.name, live.number + 1)
    if unanswered:
        raise InvalidInput("Prometheus cannot answer a query of the plan", tuple(map(_below_plan, unanswered)))
    try:
        with transaction.atomic():
            made = _store(change, live, draft, reason)
    except IntegrityError:
        raise _in_the_way(policy) from None
    return made


def _store(change: Change, live: PolicyVersion, draft: Draft, reason: str) -> Delivery:
    policy, document, plan, actor = change.policy, change.document or {}, change.plan, change.actor
    again, emergency = change.again, change.emergency
    if plan is None:
        raise ValueError("a proposal needs a plan")
    versions.lock(policy.name)
    draft_etag = claim(drafts.versioned(policy), draft)
    candidate = versions.add_version(policy, document, actor, reason, based_on=live.number, draft_etag=draft_etag)
    ready = bool(emergency) or not plan.approvals.needed
    now = timezone.now()
    last = policy.deliveries.order_by("-pk").first()
    made = Delivery.objects.create(
        policy=policy,
        candidate=candidate,
        base=live,
        plan=plan.canonical,
        plan_sha256=plan.sha256,
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
        record_emergency(policy, made.subject, actor, emergency)
        tell(made, "emergency", 0, emergency, actor)
    return made


def _in_the_way(policy: Policy) -> Conflict:
    held = selectors.open_delivery(policy)
    if held is None:  # another version took the number
        return Conflict("another version was made a moment earlier: try again", kind="live")
    return open_conflict(held)


def check_plan(policy: Policy, plan: object, now: datetime) -> Plan:
    """Return the checked plan. InvalidInput lists every problem; paths begin with `plan`."""
    names = [pool.name for pool in policies.pools_of(policy)]
    try:
        checked = parse_plan(plan, pools=names, approvals_needed=policy.approvals_needed)
    except InvalidInput as error:
        raise InvalidInput("the plan is not valid", tuple(_below_plan(each) for each in error.problems)) from None
    if checked.start and _is_past(checked.start, now):
        message = "the start has passed"
        raise InvalidInput("the plan is not valid", (Problem("plan.start.at", checked.start.at, message),))
    return checked


def _below_plan(problem: Problem) -> Problem:
    path = f"plan.{problem.path}" if problem.path else "plan"
    return Problem(path, problem.value, problem.message, problem.allowed)


def _is_past(start: Start, now: datetime) -> bool:
    return schedules.instant(start.at, start.zone) + timedelta(seconds=start.latest_s) <= now
