"""After a time without frames, each sender may report again before its silence counts."""

from typing import Any

import pytest
from msgspec.structs import replace

from controlplane.base.schedule.reports import LEASE
from controlplane.live.dashboard.frame.build import build_frame
from controlplane.live.dashboard.frame.listening import RETURN_S
from controlplane.live.dashboard.frame.types import Frame
from controlplane.live.dashboard.tests.test_attention import LIVE, late_step, node
from controlplane.live.dashboard.tests.test_frames import NOW, Inputs, fleet, instance, router, sample

BACK = NOW + 22  # after 22 s without Redis


def frame_at(at: float, previous: Frame | None, *, reported: float = NOW, fresh: str = "", **more: Any) -> Frame:
    """A frame in which every sender last reported at `reported`, except for those in `fresh`, which report now."""
    times = {name: at if name == fresh else reported for name in ("router", "sample", "control")}
    inputs: dict[str, Any] = {
        "fleets": {"demo": fleet(instance("demo-0"), instance("demo-1"))},
        "samples": {"demo-0": sample(times["sample"]), "demo-1": sample(reported)},
        "routers": {"r": router(times["router"])},
        "policies": LIVE,
        "control_at": times["control"],
    }
    return build_frame(at, Inputs(**{**inputs, **more}), previous)


def said(frame: Frame) -> set[str]:
    return {item["rule"] for item in frame["attention"]}


BEFORE = frame_at(NOW, None)


@pytest.mark.parametrize(
    ("fresh", "owed"),
    [
        ("", ["samples", "control", "routers"]),
        ("router", ["samples", "control"]),
        ("control", ["samples", "routers"]),
        ("sample", ["control", "routers"]),
    ],
)
def test_after_a_gap_without_frames_silence_does_not_count_at_first(fresh: str, owed: list[str]) -> None:
    degraded = {"r": {**router(BACK if fresh == "router" else NOW), "degraded": ["no instance was sampled for 22 s"]}}
    more = {"routers": degraded} if "samples" in owed else {}
    frame = frame_at(BACK, BEFORE, fresh=fresh, **more)
    assert (frame["health"]["gap"], frame["health"]["owed"]) == ([NOW, BACK], owed)
    assert frame["attention"] == []
    assert frame["routers"]["gone"] == [False]
    assert (frame["health"]["routers_state"], frame["instances"]["status"]) == ("serving", ["ready", "ready"])
    assert frame["instances"]["last_known"] == [fresh != "sample", True]


def test_a_sender_that_stays_silent_counts_as_silent_after_a_while() -> None:
    frame: Frame = frame_at(BACK, BEFORE)
    for second in range(1, int(RETURN_S) + 1):
        frame = frame_at(BACK + second, frame)
        assert frame["attention"] == []
    frame = frame_at(BACK + RETURN_S + 1, frame)
    assert said(frame) == {"worker_gone", "router_gone"}
    assert "gap" not in frame["health"]


def test_a_silence_that_began_before_the_gap_counts() -> None:
    gone = frame_at(NOW, None, reported=NOW - 60)
    assert said(frame_at(BACK, gone, reported=NOW - 60)) == {"worker_gone", "router_gone"}


def test_steps_get_time_after_the_database_refused_writes() -> None:
    steps = {"fleet.reconcile": replace(late_step(""), at=NOW)}
    refused = {"steps": {**steps, LEASE: replace(late_step("attempt to write a readonly database"), at=BACK)}}
    frame: Frame = frame_at(NOW, BEFORE, steps=steps)
    for at in (NOW + 1, BACK):
        frame = frame_at(at, frame, reported=at, read_only=True, **refused)
    for at in (BACK + 1, BACK + RETURN_S):
        frame = frame_at(at, frame, reported=at, steps=steps)
        assert frame["attention"] == []
    frame = frame_at(BACK + RETURN_S + 1, frame, reported=BACK + RETURN_S + 1, steps=steps)
    assert said(frame) == {"step_late"}


def test_without_a_gap_a_silence_counts_at_once() -> None:
    frame: Frame | None = None
    for second in range(12):
        frame = frame_at(NOW + second, frame)
    assert frame is not None
    assert said(frame) == {"worker_gone", "router_gone"}


def test_steps_and_nodes_get_time_too() -> None:
    steps, nodes = {"fleet.reconcile": late_step("")}, [node(NOW - 5)]
    kept = {"steps": steps, "nodes": nodes}
    assert said(frame_at(NOW + 20, None, reported=NOW + 20, **kept)) >= {"step_late", "node_silent"}
    before = frame_at(NOW - 30, None, reported=NOW - 30)
    assert not said(frame_at(NOW, before, **kept)) & {"step_late", "node_silent"}


def test_with_an_empty_redis_each_sender_gets_time_for_a_first_report() -> None:
    empty: dict[str, Any] = {"routers": {}, "samples": {}, "policies": {}, "control_at": None}
    frame: Frame = frame_at(NOW, None, **empty)
    assert frame["health"]["owed"] == ["samples", "control", "routers"]
    assert (frame["attention"], [one["kind"] for one in frame["banners"]]) == ([], ["returned"])
    for second in range(1, int(RETURN_S) + 2):
        frame = frame_at(NOW + second, frame, **empty)
    assert said(frame) == {"router_gone", "instance_down"}
    assert {one["kind"] for one in frame["banners"]} == {"router", "control", "node"}
