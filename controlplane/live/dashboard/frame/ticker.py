"""The ticker of Live and the wall. Its lines are also the marks on the charts: a rollout is one mark, at its start.
Pure."""

from collections.abc import Iterator, Sequence

from controlplane.common.figures import seconds
from controlplane.live.dashboard.frame.types import Frame, ShownEvent
from router.contract.redis.fleet_status import FleetEvent

SHOWN = 30
READ = 2 * SHOWN  # events read, because the end of a change may be merged with its beginning


# Events of routers that stop reporting and report again: lines of the ticker, and marks on the charts at the start of a
# silence
KIND = "router"


def events(now: float, frame: Frame, previous: Frame | None) -> Iterator[FleetEvent]:
    """Yield the changes since the previous frame."""
    before = _silent(previous) if previous is not None else {}
    for name, age_s in _silent(frame).items():
        if previous is not None and name not in before and name in previous["routers"]["id"]:
            yield FleetEvent(at=now - age_s, kind=KIND, subject=name, text=f"router {name} fell silent")
    for name in frame["routers"]["id"]:
        if name in before and name not in _silent(frame):
            lasted = seconds(before[name] + now - (previous or frame)["at"])
            yield FleetEvent(at=now, kind=KIND, subject=name, text=f"router {name} reports again after {lasted}")


def _silent(frame: Frame) -> dict[str, float]:
    """Return, by router, the age of the last report of each missing router."""
    columns = frame["routers"]
    rows = zip(columns["id"], columns["age_s"], columns["gone"], strict=True)
    return {name: age_s for name, age_s, gone in rows if gone}


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
