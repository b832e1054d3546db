"""Lines of the ticker as a share shows them: a sentence for each kind of event, about named things. Pure."""

from collections.abc import Collection

from controlplane.live.dashboard.frame.types import ShownEvent
from controlplane.people.notices.events import EVENTS
from controlplane.people.notices.wordless import text_of

# Text behind the name, by kind of an event in the history of an instance or a pool
SENTENCES = {
    "failed": "failed",
    "unreachable": "cannot be reached",
    "ready": "is ready again",
    "drain": "was asked to drain",
    "undrain": "was asked to serve again",
    "restart": "was asked to restart",
    "stop": "was asked to stop",
    "start": "was asked to start",
    "sleep": "was told to sleep",
    "wake": "was told to wake",
    "asleep": "sleeps",
    "awake": "is awake",
    "refused": "did not follow an order",
    "adapter": "holds another adapter",
    "calibration": "was measured",
    "create": "was added",
    "update": "has another configuration",
    "remove": "was removed",
    "scale": "was scaled",
    "complete": "completed its rollout",
    "halt": "halted its rollout",
    "resume": "resumed its rollout",
    "rollback": "went back to an earlier configuration",
    "source": "has other engines in its source",
    "source away": "has a source that does not answer",
    "source back": "has a source that answers again",
    "note": "has a new note",
}
NODE, ROUTER = "node", "router"


def sentence(event: ShownEvent, names: Collection[str]) -> str:
    """Return the sentence; empty for an event that a share does not show. `names`: pools and instances that it
    shows."""
    kind, subject = event["kind"], event["subject"]
    if kind == NODE:
        return "a node came, went or changed"
    if kind == ROUTER:
        return "a router fell silent or reports again"
    if kind in EVENTS:
        return text_of(kind, subject)
    return f"{subject} {SENTENCES[kind]}" if kind in SENTENCES and subject in names else ""
