"""A person's actions on a delivery's page, by state and permission."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controlplane.people.audit.services import Actor
from controlplane.people.permissions import Role, can_administer, can_operate
from controlplane.traffic.deliveries import selectors, services
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.states import TABLE, Origin, State, Trigger


@dataclass(frozen=True, slots=True)
class Verb:
    label: str
    effect: str  # description of the effect, beside the button
    service: Callable[..., Delivery]
    what: Trigger | None = None  # None if there is no transition
    urgent: bool = False  # True if one press in the page's header suffices, without a reason
    danger: bool = False
    primary: bool = False
    role: Role = "operator"

    def permits(self, user: Any) -> bool:
        return can_administer(user) if self.role == "admin" else can_operate(user)

    def act(self, delivery: Delivery, actor: Actor, reason: str, etag: str | None) -> None:
        """Perform the action; an urgent action ignores the ETag and applies to the current state."""
        if self.service is services.explain:
            self.service(delivery, actor, reason)
        else:
            self.service(delivery, actor, reason, if_match=None if self.urgent else etag)


PAUSE, ABORT = "Live decides every request until somebody resumes.", "Every request back to the live version."
APPROVE, REJECT = "For this document, plan and live version.", "Ends the delivery. Needs a reason."
RESUME = "Begins the step again, with new figures; a switchback keeps its complete pairs. Needs a reason."
EXTEND = "Goes on with more pairs of blocks; what was counted stays. Needs a reason."
ADVANCE = "Goes on to the next step, whatever the guards say. Needs a reason."
WITHDRAW = "Ends the delivery; its document is a draft again."
EMERGENCY = "An emergency: without approvals, through freezes. Needs a reason; everybody is told."
EXPLAIN = "Kept in the audit log and on this page."
VERBS: dict[str, Verb] = {
    "start": Verb("Start", "Begins the first step.", services.start, Trigger.START, urgent=True, primary=True),
    "pause": Verb("Pause", PAUSE, services.pause, Trigger.PAUSE, urgent=True),
    "abort": Verb("Abort", ABORT, services.abort, Trigger.ABORT, urgent=True, danger=True),
    "approve": Verb("Approve", APPROVE, services.approve, Trigger.APPROVE, primary=True),
    "reject": Verb("Reject", REJECT, services.reject, Trigger.REJECT),
    "resume": Verb("Resume", RESUME, services.resume, Trigger.RESUME, primary=True),
    "advance": Verb("Advance", ADVANCE, services.advance, Trigger.ADVANCE),
    "extend": Verb(f"Extend by {services.MORE_PAIRS} pairs", EXTEND, services.extend, Trigger.EXTEND),
    "withdraw": Verb("Withdraw", WITHDRAW, services.withdraw, Trigger.WITHDRAW),
    "go-without": Verb("Bypass the rules", EMERGENCY, services.go_without, danger=True, role="admin"),
    "explain": Verb("Add the reason", EXPLAIN, services.explain, primary=True),
}


def offered(name: str, verb: Verb, delivery: Delivery) -> bool:
    """Return whether the action is possible in this state."""
    if verb.service is services.go_without:
        return delivery.is_open and not delivery.emergency and delivery.state != State.BAKING
    if verb.what is None:
        return (
            delivery.state in (State.ABORTED, State.ROLLED_BACK) and delivery.what == Trigger.ABORT and not delivery.why
        )
    if verb.what is Trigger.EXTEND and delivery.plan["steps"][delivery.step]["mode"] != "switchback":
        return False
    rule = TABLE.get((verb.what, State(delivery.state)))
    return rule is not None and Origin.PERSON in rule.who


def waiting_for(user: Any) -> list[Delivery]:
    """Return first the proposals that this person may approve, then the deliveries that wait for an operator."""
    if not can_operate(user):
        return []
    return [*selectors.waiting_for(user.get_username()), *selectors.deliveries(states=(State.WAITING, State.PAUSED))]


def refusal(name: str, delivery: Delivery, actor: Actor) -> str:
    """Return why this person cannot act although their role could; empty if they can."""
    if name == "approve":
        return selectors.approval_refusal(delivery, actor.person)
    if name == "withdraw" and actor.person != delivery.proposer and not actor.is_admin:
        return f"Only {delivery.proposer}, who proposed it, or an administrator."
    return ""
