"""The history of a delivery, made of entries of the audit log. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from msgspec import Struct

from controlplane.pages.delivery_pages.display.steps import title
from controlplane.traffic.deliveries.plan.types import Plan

WORDS: Mapping[str, str] = {
    "propose": "Proposed",
    "approve": "Approved",
    "reject": "Rejected",
    "expire": "Expired",
    "withdraw": "Withdrawn",
    "start": "Started",
    "miss": "Missed its start",
    "late": "Paused: a router has not loaded the candidate",
    "block": "Changed sides",
    "hold": "Put on hold",
    "good": "Hold ended",
    "pause": "Paused",
    "resume": "Resumed",
    "extend": "Extended by pairs of blocks",
    "give_up": "Aborted after a day's pause",
    "abort": "Aborted",
    "fail": "Stopped by guard",
    "trip": "Stopped by router",
    "overtake": "Aborted by another publication",
    "roll_back": "Rolled back",
    "deliver": "Delivered",
    "explain": "Reason added",
}
NAMED = ("fail", "trip")  # transitions whose words already name the actor
ENTERS = ("armed", "pass", "advance")  # transitions that begin a step


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    at: datetime
    what: str
    who: str  # empty if `what` names the actor
    why: str


class StepReached(Struct, frozen=True):
    """The delivery after the entry."""

    state: str = ""
    step: int = 0


def entry(at: datetime, action: str, who: str, why: str, after: StepReached, plan: Plan) -> TimelineEntry:
    verb = action.removeprefix("delivery.")
    return TimelineEntry(at, _what(verb, after, plan), "" if verb in NAMED else who, why)


def _what(verb: str, after: StepReached, plan: Plan) -> str:
    state = after.state
    if verb in ("fail", "abort") and state == "rolled_back":
        return "Rolled back by guard" if verb == "fail" else "Rolled back"
    if verb in ENTERS:
        return {
            "waiting": "Passed; asks to go on",
            "baking": "Live for everyone",
            "finished": "Finished: the last step passed",
        }.get(state) or f"{title(plan.steps[min(after.step, len(plan.steps) - 1)])} began"
    if verb == "start" and state == "baking":
        return "Live for everyone"
    if verb == "hold" and state == "paused":
        return "Paused after the third hold of the step"
    return WORDS.get(verb, verb.replace("_", " ").capitalize())
