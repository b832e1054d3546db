"""When a router falls silent or reports again, the ticker has a line and the charts a mark."""

import pytest
import redis

from controlplane.live.dashboard.frame.build import build_frame
from controlplane.live.dashboard.frame.ticker import events
from controlplane.live.dashboard.frame.types import Frame
from controlplane.live.dashboard.step import latest, step
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.live.dashboard.tests.test_frames import NOW, Inputs, fleet, router


def frames(reports: list[float | None]) -> list[Frame]:
    """Return one frame per second; `reported` has the second of the router's last report for each,
    or None if unknown.
    """
    made: list[Frame] = []
    for second, reported in enumerate(reports):
        routers = {} if reported is None else {"r": router(NOW + reported)}
        inputs = Inputs(fleets={"demo": fleet()}, routers=routers)
        made.append(build_frame(NOW + second, inputs, made[-1] if made else None))
    return made


@pytest.mark.parametrize(
    ("reports", "told"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], []),
        ([0, 0, 0, 0, 0, 0, 0, 0], [(0, "router r fell silent")]),
        ([0, 0, 0, 0, 0, 0, 0, 7], [(0, "router r fell silent"), (7, "router r reports again after 7 s")]),
        ([0, 0, 0, 0, 4, 5, 6, 7], []),
        ([None, None, None, 3, 4, 5, 6, 7], []),
        ([0, 1, None, None, None, None, None, None], []),  # the router was stopped, and had announced that
    ],
)
def test_a_silence_is_reported_at_its_start_and_its_end(
    reports: list[float | None], told: list[tuple[float, str]]
) -> None:
    seen: list[Frame] = frames(reports)
    pairs = zip([None, *seen], seen, strict=False)
    said = [event for previous, frame in pairs for event in events(frame["at"], frame, previous)]
    assert [(event.at - NOW, event.text) for event in said] == told
    assert {(event.kind, event.subject) for event in said} <= {("router", "r")}


def test_the_ticker_of_the_next_frame_contains_the_silence(live_redis: redis.Redis) -> None:
    demo = FakeFleet(live_redis)
    demo.write(NOW)
    for second in range(8):
        demo.write_samples(NOW + second)
        step(live_redis, NOW + second, "worker")
    frame = latest(live_redis)
    assert frame is not None
    assert [(event["at"], event["text"]) for event in frame["events"]] == [(NOW, "router router-1 fell silent")]
