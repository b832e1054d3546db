"""A rollout is one line of the ticker, and so one mark on the charts."""

from controlplane.live.dashboard.frame import ticker
from router.contract.redis.fleet_status import FleetEvent

BEGUN = "demo: version 2: engine.seed 1 → 2"


def event(at: float, kind: str, text: str, version: int = 0, subject: str = "demo") -> FleetEvent:
    return FleetEvent(at=at, kind=kind, subject=subject, text=text, version=version)


def told(*newest_first: FleetEvent) -> list[tuple[float, str]]:
    return [(line["at"], line["text"]) for line in ticker.lines(newest_first)]


def test_a_completed_rollout_is_one_line_at_its_start() -> None:
    end = event(145.0, "complete", "demo: rollout of v2 complete: 8/8 ready", 2)
    failed = event(120.0, "failed", "demo-5 failed: out of memory", subject="demo-5")
    assert told(end, failed, event(100.0, "update", BEGUN, 2)) == [
        (120.0, "demo-5 failed: out of memory"),
        (100.0, f"{BEGUN}; complete after 45 s"),
    ]


def test_an_unfinished_rollout_is_shown_by_its_start() -> None:
    assert told(event(100.0, "update", BEGUN, 2)) == [(100.0, BEGUN)]


def test_an_end_event_without_its_start_event_is_shown_alone() -> None:
    others = event(100.0, "update", BEGUN, 2, subject="chat"), event(90.0, "update", "demo: version 1", 1)
    end = event(145.0, "complete", "demo: rollout of v2 complete", 2)
    assert told(end, *others)[0] == (145.0, "demo: rollout of v2 complete")


def test_events_outside_a_rollout_are_unchanged() -> None:
    plain = [event(float(at), "complete" if at % 2 else "update", f"event {at}") for at in range(40, 0, -1)]
    assert [text for _, text in told(*plain)] == [f"event {at}" for at in range(40, 10, -1)]
