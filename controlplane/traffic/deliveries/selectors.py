"""Reads deliveries, their approvals and freezes."""

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Q, QuerySet

from controlplane.traffic.deliveries.going_live import approvals
from controlplane.traffic.deliveries.models import Delivery, Freeze
from controlplane.traffic.deliveries.states import OPEN, State, Trigger
from controlplane.traffic.deliveries.timing import freezes
from controlplane.traffic.policies.errors import NoSuchPolicy
from controlplane.traffic.policies.models import Policy
from router.contract.values.json_value import JsonObject
from router.policy.schema import document as documents

RELATED = ("policy", "candidate", "base")


def deliveries(policy: Policy | None = None, states: Iterable[State] | None = None) -> QuerySet[Delivery]:
    """Return deliveries, newest first."""
    rows = Delivery.objects.select_related(*RELATED)
    if policy is not None:
        rows = rows.filter(policy=policy)
    return rows if states is None else rows.filter(state__in=list(states))


def open_deliveries() -> QuerySet[Delivery]:
    return deliveries(states=OPEN)


def open_delivery(policy: Policy) -> Delivery | None:
    return deliveries(policy, OPEN).first()


def delivery(pk: int) -> Delivery:
    row = deliveries().filter(pk=pk).first()
    if row is None:
        raise NoSuchPolicy(f"there is no delivery {pk}")
    return row


def waiting_for(person: str) -> list[Delivery]:
    """Return the open deliveries that this person may approve."""
    proposed = deliveries(states=(State.PROPOSED,)).prefetch_related("approvals")
    return [delivery for delivery in proposed if not approval_refusal(delivery, person)]


def approval_refusal(delivery: Delivery, person: str) -> str:
    """Return why this person cannot approve the delivery; empty if they can."""
    approvers = [approval.person for approval in delivery.approvals.all()]
    return approvals.refusal(person, delivery.proposer, delivery.drafters, approvers)


def digest(delivery: Delivery) -> str:
    base = delivery.base
    return approvals.digest(delivery.candidate.sha256, delivery.plan_sha256, base.number, base.sha256)


def is_approved(delivery: Delivery, needed: int) -> bool:
    given = delivery.approvals.values_list("person", "sha256")
    return bool(delivery.emergency) or approvals.complete(given, digest(delivery), needed)


def freeze_in_force(policy: Policy, now: datetime) -> tuple[freezes.FreezeRule, freezes.Occurrence] | None:
    return freezes.in_force([row.rule for row in Freeze.objects.filter(removed_at=None)], policy.name, now)


def freeze_of(delivery: Delivery, now: datetime) -> tuple[freezes.FreezeRule, freezes.Occurrence] | None:
    """Return the freeze that the delivery must wait for; none in an emergency."""
    return None if delivery.emergency else freeze_in_force(delivery.policy, now)


def keeps_from_going_on(delivery: Delivery, now: datetime) -> tuple[freezes.FreezeRule, freezes.Occurrence] | None:
    """Return the freeze that holds a step, or that keeps a shadow from passing."""
    return freeze_of(delivery, now) if delivery.state in (State.STEP, State.HOLDING) else None


def failed_before(policy: Policy, document: JsonObject) -> Delivery | None:
    """Return the latest delivery of an equivalent document that was rolled back, or that a guard or a router
    aborted."""
    wanted = documents.in_force(document)
    ended = deliveries(policy, (State.ABORTED, State.ROLLED_BACK))
    failed = ended.filter(Q(state=State.ROLLED_BACK) | Q(what__in=[Trigger.FAIL, Trigger.TRIP]))
    return next((each for each in failed if documents.in_force(each.candidate.document) == wanted), None)
