"""The events that a channel may subscribe to, by name. Pure."""

from collections.abc import Iterable

EVERY = "*"
DELIVERY_STATES = {
    "proposed": "a delivery was proposed and may need approval",
    "ready": "a delivery is approved and can start",
    "arming": "a delivery starts or resumes",
    "step": "a delivery entered a step",
    "holding": "a delivery holds by itself: an error, a freeze or a router that is behind",
    "waiting": "a delivery waits for a person to advance it",
    "paused": "a delivery is paused until a person resumes it",
    "baking": "the candidate is live for all requests and still watched",
    "delivered": "a delivery ended well",
    "finished": "every step of a delivery passed, and its plan does not go live",
    "aborted": "a delivery was aborted",
    "rolled_back": "a delivery was rolled back after it had gone live",
    "rejected": "an approver rejected a delivery",
    "expired": "a proposal expired without its approvals",
    "withdrawn": "a proposal was withdrawn",
    "missed": "a delivery missed its start",
}
EVENTS: dict[str, str] = {
    **{f"delivery.{state}": text for state, text in DELIVERY_STATES.items()},
    "delivery.emergency": "an administrator made a delivery bypass the rules",
    "policy.published": "a version was published directly",
    "policy.pool_joined": "a pool uses another policy from now on",
    "policy.emergency": "an administrator bypassed the rules of a policy",
    "policy.rolled_back": "a version was rolled back",
    "models.published": "a version of the document Models was published",
    "models.rolled_back": "a version of the document Models was rolled back",
    "budget.warned": "an API key or a pool has spent most of a budget",
    "budget.exceeded": "an API key or a pool has spent a budget, or is refused because of it",
    "instance.failed": "an instance failed or cannot be reached",
    "node.silent": "a node fell silent",
    "note.written": "a person wrote a note",
    "channel.test": "the test of a channel",
}
TEST = "channel.test"  # sent to its channel regardless of subscriptions


def choices() -> list[str]:
    """Return the names that a subscription accepts: events, groups (`delivery.*`) and `*`."""
    groups = dict.fromkeys(f"{name.partition('.')[0]}.*" for name in EVENTS if name != TEST)
    return [EVERY, *groups, *(name for name in EVENTS if name != TEST)]


def matches(subscriptions: Iterable[str], event: str) -> bool:
    return not {EVERY, f"{event.partition('.')[0]}.*", event}.isdisjoint(subscriptions)
