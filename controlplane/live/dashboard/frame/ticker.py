"""The ticker of Live and the wall, whose lines are the marks on the charts: a rollout is one mark, at its start.
Pure."""

from collections.abc import Iterator, Sequence

from controlplane.common.figures import seconds
from controlplane.live.dashboard.frame.types import ShownEvent
from router.contract.redis.fleet_status import FleetEvent

SHOWN = 30
READ = 2 * SHOWN  # events read, as each end may fold into its beginning


def lines(events: Sequence[FleetEvent]) -> list[ShownEvent]:
    """Return the lines. `events` and lines are newest first."""
    return list(_folded(events))[:SHOWN]


def _folded(events: Sequence[FleetEvent]) -> Iterator[ShownEvent]:
    rollouts = [event for event in events if event.version]
    begun = {(event.subject, event.version) for event in rollouts if event.kind != "complete"}
    ended = {(event.subject, event.version): event.at for event in rollouts if event.kind == "complete"}
    for event in events:
        rollout = (event.subject, event.version)
        if event.kind != "complete":
            yield _line(event, ended.get(rollout))
        elif rollout not in begun:
            yield _line(event, None)


def _line(event: FleetEvent, complete_at: float | None) -> ShownEvent:
    after = "" if complete_at is None else f"; complete after {seconds(complete_at - event.at)}"
    return {
        "at": event.at,
        "kind": event.kind,
        "subject": event.subject,
        "text": event.text + after,
        "actor": event.actor,
        "pools": list(event.pools),
    }
