"""Rules of the policies that pools use, and which of them each way of going live must pass. Every entry point (page,
REST, command, document, schedule) calls `check` before it changes anything; docs/security.md has the same table.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from controlplane.common.as_seen import held
from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from controlplane.people.notices.services import notify
from controlplane.people.permissions import can_administer
from controlplane.traffic.deliveries import selectors
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.moving import clock_s
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.reader import NUMBERS
from controlplane.traffic.deliveries.plan.types import Canary, Full, Plan, Step, Switchback
from controlplane.traffic.deliveries.states import State
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.drafts import services as drafts
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import Direct, LeastPlan, Policy, PolicyVersion
from router.contract.values.fields import Field, accept
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput, Problem

# Evidence that a delivery must show before its candidate goes live, for policies that may not go live directly


def problems_of(plan: Plan, least: LeastPlan, pools: Iterable[str]) -> tuple[Problem, ...]:
    """Return the problems of a plan that shows too little; paths begin with `plan`. `pools` are the pools where it
    would go live."""
    problems = []
    if not any(_shows(step, least) for step in plan.steps):
        allowed = f"a canary of at least {least.share:g} for {least.for_s:,} s, or a switchback that takes as long"
        problems.append(Problem("plan.steps", len(plan.steps), "no step shows enough", allowed))
    last = plan.steps[-1]
    if isinstance(last, Full) and last.bake_s < least.bake_s:
        path = f"plan.steps[{len(plan.steps) - 1}].bake_s"
        problems.append(Problem(path, last.bake_s, "is too short", f"{least.bake_s:,} or more"))
    missing = sorted(set(pools) - set(plan.pools))
    if missing:
        text = "leaves out pools that it would go live on"
        problems.append(Problem("plan.pools", ", ".join(plan.pools), text, f"with {', '.join(missing)}"))
    return tuple(problems)


def _shows(step: Step, least: LeastPlan) -> bool:
    if isinstance(step, Canary):
        return step.share >= least.share and step.for_s >= least.for_s
    return isinstance(step, Switchback) and lasts_s(step) >= least.for_s


def lasts_s(step: Step) -> int:
    """Return the shortest duration of a step."""
    if isinstance(step, Switchback):
        return 2 * step.pairs * step.block_s
    return 0 if isinstance(step, Full) else step.for_s


def evidence_missing(delivery: Delivery, now: datetime) -> str:
    """Return the evidence that the step still needs before it may continue; empty if it has passed, or if it has run
    for its time and was judged.
    """
    if delivery.state == State.WAITING:
        return ""
    number, step = delivery.step + 1, stored_plan.read(delivery.plan).steps[delivery.step]
    ran, needed = clock_s(delivery, now), lasts_s(step)
    if ran < needed:
        return f"step {number} has run for {ran:,.0f} of {needed:,} s"
    looks = delivery.looks.filter(step=delivery.step, at__gte=delivery.step_started_at or delivery.state_at)
    return "" if looks.exists() else f"nobody has looked at step {number} yet"


class Way(StrEnum):
    """A way for a document to start deciding the requests of pools."""

    PUBLISH = "publish"  # a draft, immediately
    JOIN = "join"  # a pool starts to use this policy
    LEAVE = "leave"  # the same pool takes over requests that this policy decided
    RETURN = "return"  # a pool that rolls back to a working configuration takes over requests that this policy decided
    REDIRECT = "redirect"  # an alias is directed to other pools; checked for the policies of both sides
    ADD_POOL = "add pool"  # a new pool that takes over no requests
    PROPOSE = "propose"
    START = "start"  # by a person or on schedule
    RESUME = "resume"
    ADVANCE = "advance"
    ROLL_BACK = "roll back"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Change:
    """A requested change of the document that a policy's pools use."""

    way: Way
    policy: Policy  # the policy whose rules apply; reloaded from the database
    actor: Actor
    document: JsonObject | None = None  # document that would go live
    plan: Plan | None = None
    delivery: Delivery | None = None
    again: str = ""  # reason for another attempt with a document that failed before
    emergency: str = ""  # reason why an administrator bypasses the rules
    at: datetime = field(default_factory=timezone.now)
    target: PolicyVersion | None = None  # version whose document would be restored


Refusal = PermissionDenied | Conflict | InvalidInput
REFUSALS = (PermissionDenied, Conflict, InvalidInput)


def check(change: Change) -> None:
    """Raise the first refusal: PermissionDenied, Conflict or InvalidInput."""
    check_emergency(change.actor, change.emergency)
    for refusal in refusals(change):
        raise refusal


def refusals(change: Change) -> list[Refusal]:
    """Return every refusal of the rules at the moment."""
    change.policy.refresh_from_db()
    passed = PASSED_IN_EMERGENCY if change.emergency or (change.delivery and change.delivery.emergency) else ()
    asked = [RULES[name] for name in ASKED[change.way] if name not in passed]
    return [refusal for rule in asked if (refusal := rule(change)) is not None]


def said(refusal: Exception) -> str:
    """Return the refusal in one line."""
    problems = refusal.problems if isinstance(refusal, InvalidInput) else ()
    return "; ".join(problem.message for problem in problems) or str(refusal)


# The rules


def _open(change: Change) -> Refusal | None:
    held = selectors.open_delivery(change.policy)
    return None if held is None else open_conflict(held)


def open_conflict(held: Delivery) -> Conflict:
    name = f"{held.policy.name} v{held.candidate.number}"
    text = f"{name} is being delivered; wait for it, or abort it"
    return Conflict(text, kind="open", current=held.etag)


def may_go_direct(policy: Policy, actor: Actor) -> bool:
    return policy.direct == Direct.ALLOWED or (policy.direct == Direct.ADMIN and actor.is_admin)


def _direct(change: Change) -> Refusal | None:
    name = change.policy.name
    if may_go_direct(change.policy, change.actor):
        return None
    if change.policy.direct == Direct.NEVER:
        return PermissionDenied(f"policy {name} goes live by delivery only: propose a plan with a canary")
    return PermissionDenied(f"only administrators publish policy {name} directly: propose a plan with a canary")


def _approvals(change: Change) -> Refusal | None:
    needed = change.policy.approvals_needed
    if not needed:
        return None
    return PermissionDenied(f"policy {change.policy.name} needs {needed} approvals: propose a delivery")


def _approved(change: Change) -> Refusal | None:
    """Refuse a start with fewer approvals than the plan requires, or than the policy requires now."""
    delivery = _delivery(change)
    needed = max(stored_plan.read(delivery.plan).approvals.needed, change.policy.approvals_needed)
    if selectors.is_approved(delivery, needed):
        return None
    return Conflict("approvals are missing", kind="state", current=delivery.etag)


def _least_plan(change: Change) -> Refusal | None:
    """Refuse a plan with too little evidence from a person who may not go live directly."""
    plan = change.plan or stored_plan.read(_delivery(change).plan)
    if not isinstance(plan.steps[-1], Full) or _by_right(change):
        return None
    if plan.is_direct:
        return _direct(change)
    pools = [pool.name for pool in policies.pools_of(change.policy)]
    problems = problems_of(plan, change.policy.least_plan, pools)
    return InvalidInput(f"policy {change.policy.name} asks for more of a plan", problems) if problems else None


def _by_right(change: Change) -> bool:
    """Return whether this person, or the proposer of the delivery, may go live directly."""
    if may_go_direct(change.policy, change.actor):
        return True
    if change.delivery is None or change.policy.direct == Direct.NEVER:
        return False
    proposer = get_user_model().objects.filter(username=change.delivery.proposer).first()
    return proposer is None or can_administer(proposer)  # None for a command on the host


def _evidence(change: Change) -> Refusal | None:
    """Refuse to let a person who may not go live directly skip a step."""
    if change.actor.is_admin or may_go_direct(change.policy, change.actor):
        return None
    missing = evidence_missing(_delivery(change), change.at)
    return PermissionDenied(f"{missing}; an administrator may skip it") if missing else None


def _freeze(change: Change) -> Refusal | None:
    frozen = selectors.freeze_in_force(change.policy, change.at)
    if frozen is None:
        return None
    rule, occurrence = frozen
    return Conflict(f"the freeze {rule.name} is in force until {occurrence.end:%Y-%m-%d %H:%M} UTC", kind="freeze")


def _again(change: Change) -> Refusal | None:
    failed = selectors.failed_before(change.policy, change.document) if change.document is not None else None
    if failed is None:
        return None
    said = f"v{failed.candidate.number} decided alike and was {failed.state.replace('_', ' ')}: {failed.why}"
    if change.plan is None or not change.plan.from_shadow_on:
        message = f"{said}; deliver it from a shadow step on, with a canary"
        return InvalidInput("this document has failed before", (Problem("plan.steps", None, message),))
    if not change.again.strip():
        problem = Problem("again", change.again, f"{said}; say why again")
        return InvalidInput("this document has failed before", (problem,))
    drafts.check_reason(change.again, "again")
    return None


def _was_live(change: Change) -> Refusal | None:
    """Refuse to roll back to a version that was never live; that needs a publication or a delivery."""
    if change.target is None:
        raise ValueError(f"to {change.way} needs a version")
    if change.target.live_since is not None:
        return None
    number = change.target.number
    problem = Problem("to", number, f"v{number} was never live: only a delivery brings it there")
    return InvalidInput("that version cannot come back", (problem,))


def _delivery(change: Change) -> Delivery:
    if change.delivery is None:
        raise ValueError(f"to {change.way} needs a delivery")
    return change.delivery


RULES: Mapping[str, Callable[[Change], Refusal | None]] = {
    "open": _open,
    "direct": _direct,
    "approvals": _approvals,
    "approved": _approved,
    "least plan": _least_plan,
    "evidence": _evidence,
    "freeze": _freeze,
    "again": _again,
    "was live": _was_live,
}
ASKED: Mapping[Way, tuple[str, ...]] = {
    Way.PUBLISH: ("direct", "approvals", "freeze", "again"),  # `overtake` ends an open delivery in the transaction.
    Way.JOIN: ("open", "direct", "approvals", "freeze"),
    Way.LEAVE: ("open", "direct", "approvals", "freeze", "again"),
    Way.RETURN: ("open", "direct", "approvals", "again"),  # A freeze does not block a return to a working version.
    Way.REDIRECT: ("direct", "approvals", "freeze"),
    Way.ADD_POOL: ("open",),
    Way.PROPOSE: ("least plan", "again"),  # The constraint one_open_delivery_per_policy refuses a second open delivery.
    Way.START: ("approved", "least plan", "freeze"),
    Way.RESUME: ("freeze",),
    Way.ADVANCE: ("evidence", "freeze"),
    Way.ROLL_BACK: ("was live",),
    Way.ABORT: (),
}
PASSED_IN_EMERGENCY = frozenset({"direct", "approvals", "approved", "least plan", "evidence", "freeze"})


# Emergencies


def check_emergency(actor: Actor, emergency: str) -> str:
    """Return the checked reason for which an administrator bypasses the rules; empty if there is none."""
    if not emergency:
        return ""
    if not actor.is_admin:
        raise PermissionDenied("only an administrator may bypass the rules")
    return drafts.check_reason(emergency, "emergency")


def record_emergency(policy: Policy, subject: str, actor: Actor, emergency: str) -> None:
    """Write an audit entry and a notice in the transaction of the change."""
    audit.record(actor, "policy.emergency", subject, emergency)
    pools = [pool.name for pool in policies.pools_of(policy)]
    facts: JsonObject = {"policy": policy.name, "by": actor.name, "pools": [*pools]}
    text = f"{subject}: rules bypassed by {actor.name}: {emergency}"
    notify("policy.emergency", subject, text, facts, actor.name)


# Sets the rules of a policy, and chooses the rules of a new one
RULE_FIELDS: Mapping[str, Field] = {
    "direct": Field(name="direct", kind="text", fits=Direct.values.__contains__, words=", ".join(Direct.values)),
    "approvals_needed": NUMBERS["approvals.needed"],
    "least_share": NUMBERS["canary.share"],
    "least_for_s": NUMBERS["canary.for_s"],
    "least_bake_s": NUMBERS["full.bake_s"],
}
FIELDS = tuple(RULE_FIELDS)


def set_rules(policy: Policy, actor: Actor, reason: str, *, if_match: str | None = None, **rules: object) -> Policy:
    """Set the given rules; None leaves a rule unchanged. Raise InvalidInput with every problem, or ChangedMeanwhile."""
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
    """Return the rules of a new policy: the strictest of any policy, so that a new name cannot bypass a rule."""
    rows = list(Policy.objects.values(*FIELDS))
    if not rows:
        return {}
    directs = {row.pop("direct") for row in rows}
    direct = next(word for word in (Direct.NEVER, Direct.ADMIN, Direct.ALLOWED) if word in directs)
    return {"direct": direct, **{name: max(row[name] for row in rows) for name in FIELDS[1:]}}
