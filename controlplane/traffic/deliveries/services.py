"""Actions of people on deliveries. Each function is one transaction, after which Redis is written."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction

from controlplane.people.audit import services as audit
from controlplane.people.audit.services import Actor
from controlplane.traffic.deliveries import selectors
from controlplane.traffic.deliveries.going_live.rules import (
    REFUSALS,
    Change,
    Way,
    check,
    check_emergency,
    open_conflict,
    record_emergency,
    refusals,
    said,
    set_rules,
    strictest,
)
from controlplane.traffic.deliveries.judging import judge_step, stopped, tick
from controlplane.traffic.deliveries.models import Approval, Delivery
from controlplane.traffic.deliveries.moving import TransitionRequest, hold, move, move_and_tell, moved, tell
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.plan.reader import NUMBERS
from controlplane.traffic.deliveries.proposing import check_plan, propose
from controlplane.traffic.deliveries.states import Origin, State, Trigger
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies.drafts import services as drafts
from controlplane.traffic.policies.errors import Conflict
from controlplane.traffic.policies.models import Policy
from router.contract.values.problem import InvalidInput, Problem

__all__ = [
    "Change",
    "Way",
    "check",
    "check_plan",
    "judge_step",
    "propose",
    "record_emergency",
    "refusals",
    "said",
    "set_rules",
    "stopped",
    "strictest",
    "tick",
]
MORE_PAIRS = 4  # pairs added unless the caller gives a number


# Approving


def approve(delivery: Delivery, actor: Actor, comment: str = "", *, if_match: str | None = None) -> Delivery:
    """Approve a delivery; the last missing approval makes it ready."""
    with transaction.atomic():
        hold(delivery)
        _check_etag(delivery, if_match)
        if delivery.state != State.PROPOSED:
            raise Conflict(f"the delivery is {delivery.state}: only a proposed one is approved", kind="state")
        refusal = selectors.approval_refusal(delivery, actor.person)
        if refusal:
            raise PermissionDenied(refusal)
        needed = stored_plan.read(delivery.plan).approvals.needed
        _add_approval(delivery, actor, comment)
        if selectors.is_approved(delivery, needed):
            return move(delivery, TransitionRequest(Trigger.APPROVE, Origin.PERSON, actor, comment))
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
    """Count one of several approvals. The revision changes, so that of two concurrent approvals both count."""
    claimed = Delivery.objects.filter(pk=delivery.pk, revision=delivery.revision).update(revision=delivery.revision + 1)
    if not claimed:
        raise moved(delivery)
    audit.record(actor, "delivery.approve", delivery.subject, comment, None, {"sha256": selectors.digest(delivery)})


def go_without(delivery: Delivery, actor: Actor, emergency: str, *, if_match: str | None = None) -> Delivery:
    """Declare an emergency: the delivery then needs no approvals and no minimum plan, and ignores freezes."""
    _check_etag(delivery, if_match)
    why = check_emergency(actor, emergency or " ")
    with transaction.atomic():
        record_emergency(delivery.policy, delivery.subject, actor, why)
        if delivery.state == State.PROPOSED:
            return move(delivery, TransitionRequest(Trigger.APPROVE, Origin.PERSON, actor, why, emergency=why))
        if not delivery.is_open:
            raise Conflict(f"the delivery is {delivery.state}: it has ended", kind="state", current=delivery.etag)
        marked = {"revision": delivery.revision + 1, "emergency": why}
        if not Delivery.objects.filter(pk=delivery.pk, revision=delivery.revision).update(**marked):
            raise moved(delivery)
        tell(delivery, "emergency", delivery.step, why, actor)
    delivery.refresh_from_db()
    return delivery


def reject(delivery: Delivery, actor: Actor, reason: str, *, if_match: str | None = None) -> Delivery:
    return _by_person(delivery, Trigger.REJECT, actor, drafts.check_reason(reason), if_match)


def withdraw(delivery: Delivery, actor: Actor, reason: str = "", *, if_match: str | None = None) -> Delivery:
    """Turn the candidate into a draft again. Only its proposer or an administrator may do this."""
    if actor.person != delivery.proposer and not actor.is_admin:
        raise PermissionDenied(f"{delivery.proposer} proposed the delivery: only they withdraw it; reject or abort it")
    return _by_person(delivery, Trigger.WITHDRAW, actor, reason, if_match)


# Steering


def start(delivery: Delivery, actor: Actor, reason: str = "", *, if_match: str | None = None) -> Delivery:
    """Start a delivery; approvals, base, rules and freezes are checked again here."""
    _check_etag(delivery, if_match)
    live = policies.live_version(delivery.policy)
    if live.number != delivery.base.number:
        text = f"v{live.number} is live by now; the delivery was proposed against v{delivery.base.number}"
        raise Conflict(text, kind="live", current=live.etag)
    return _as_the_rules_allow(Way.START, delivery, Trigger.START, actor, reason, if_match)


@dataclass(frozen=True, slots=True)
class ProposedDelivery:
    """A newly proposed delivery, and the reason why it did not start at once."""

    delivery: Delivery
    refusal: str = ""  # a freeze, for example; empty if it started, waits for approvals, or has a scheduled start


def begin(delivery: Delivery, actor: Actor) -> ProposedDelivery:
    """Start a new delivery that needs no approval and has no scheduled start; if the rules refuse, it stays ready."""
    if delivery.state != State.READY or delivery.starts_at is not None:
        return ProposedDelivery(delivery)
    try:
        return ProposedDelivery(start(delivery, actor))
    except REFUSALS as error:
        delivery.refresh_from_db()
        return ProposedDelivery(delivery, said(error))


def pause(delivery: Delivery, actor: Actor, reason: str = "", *, if_match: str | None = None) -> Delivery:
    """Let the live version decide every request until someone resumes the delivery."""
    return _to_safety(delivery, Trigger.PAUSE, actor, reason, if_match)


def resume(delivery: Delivery, actor: Actor, reason: str, *, if_match: str | None = None) -> Delivery:
    """Begin the step again with new counts; a switchback keeps its complete pairs of blocks."""
    return _as_the_rules_allow(Way.RESUME, delivery, Trigger.RESUME, actor, drafts.check_reason(reason), if_match)


def extend(
    delivery: Delivery, actor: Actor, reason: str, pairs: int = MORE_PAIRS, *, if_match: str | None = None
) -> Delivery:
    """Add pairs of blocks to a switchback and keep its counts. A paused switchback continues with the new pairs."""
    reason = drafts.check_reason(reason)
    _check_pairs(delivery, pairs)
    return _as_the_rules_allow(Way.RESUME, delivery, Trigger.EXTEND, actor, reason, if_match, pairs)


def _check_pairs(delivery: Delivery, pairs: int) -> None:
    high = int(NUMBERS["switchback.pairs"].range[1]) - len(delivery.blocks) // 2
    if isinstance(pairs, bool) or not 1 <= pairs <= high:
        allowed = f"1 to {high}" if high > 0 else "none: the switchback has as many as it may have"
        raise InvalidInput("the pairs are not valid", (Problem("pairs", pairs, "out of range", allowed),))


def advance(delivery: Delivery, actor: Actor, reason: str, *, if_match: str | None = None) -> Delivery:
    """Advance to the next step regardless of the guards; a failing guard also aborts there."""
    return _as_the_rules_allow(Way.ADVANCE, delivery, Trigger.ADVANCE, actor, drafts.check_reason(reason), if_match)


def abort(delivery: Delivery, actor: Actor, reason: str = "", *, if_match: str | None = None) -> Delivery:
    """Send all requests back to the live version, or to the old version during the bake. `explain` can add the reason
    later."""
    return _to_safety(delivery, Trigger.ABORT, actor, reason, if_match)


def explain(delivery: Delivery, actor: Actor, reason: str) -> Delivery:
    """Add the reason for an action that was too urgent to require one at once."""
    reason = drafts.check_reason(reason)
    with transaction.atomic():
        if not Delivery.objects.filter(pk=delivery.pk, revision=delivery.revision).update(
            revision=delivery.revision + 1, why=reason
        ):
            raise moved(delivery)
        audit.record(actor, "delivery.explain", delivery.subject, reason, {"why": delivery.why}, {"why": reason})
    delivery.refresh_from_db()
    return delivery


def overtake(policy: Policy, what: Trigger, actor: Actor, why: str, *, allowed: bool) -> None:
    """End the open delivery, in the transaction of a caller that makes another version live."""
    held = selectors.open_delivery(policy)
    if held is None:
        return
    if not allowed:
        raise open_conflict(held)
    move(held, TransitionRequest(what, Origin.PERSON, actor, why))


def _as_the_rules_allow(
    way: Way, delivery: Delivery, what: Trigger, actor: Actor, reason: str, if_match: str | None, pairs: int = 0
) -> Delivery:
    """Check the rules, unless the state forbids the action anyway."""
    asked = partial(check, Change(way, delivery.policy, actor, delivery=delivery))
    return _by_person(delivery, what, actor, reason, if_match, pairs, asked)


def _to_safety(delivery: Delivery, what: Trigger, actor: Actor, reason: str, if_match: str | None) -> Delivery:
    """Make a transition back to the live version. Without an ETag, concurrent changes by others do not prevent it."""
    return _by_person(delivery, what, actor, reason, if_match, as_it_is=if_match is None)


def _by_person(
    delivery: Delivery,
    what: Trigger,
    actor: Actor,
    reason: str,
    if_match: str | None,
    pairs: int = 0,
    asked: Callable[[], None] | None = None,
    *,
    as_it_is: bool = False,
) -> Delivery:
    _check_etag(delivery, if_match)
    reason = reason.replace("\x00", "").strip()[: drafts.REASON_MAX]
    wanted = TransitionRequest(what, Origin.PERSON, actor, reason, pairs=pairs, check=asked)
    return move_and_tell(delivery, wanted, as_it_is=as_it_is)


def _check_etag(delivery: Delivery, if_match: str | None) -> None:
    if if_match is not None and if_match != delivery.etag:
        raise moved(delivery)
