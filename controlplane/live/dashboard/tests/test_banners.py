"""The banners that follow from a frame: a table of silent processes and the length of their silence."""

from typing import Any

import pytest
import redis
from django.test import Client

from controlplane.live.dashboard.frame import banners
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.live.dashboard.tests.test_attention import frame_of
from controlplane.live.dashboard.tests.test_pages import ahead

USUAL = {"control_age_s": 0.0, "samples_age_s": 0.0, "samples_expected": 8, "routers_state": "serving"}
ALL_DOWN = {"control_age_s": 40.0, "samples_age_s": 40.0, "routers_state": "down"}
OWED = ["samples", "control", "routers"]
SILENT = {"name": ["a", "b"], "silent_s": [None, 33], "instances": [4, 1]}


def called_for(health: dict[str, Any], **frame: Any) -> list[Any]:
    shown: Any = {**frame_of(), **frame}
    return banners.of({**shown, "health": {**shown["health"], **USUAL, **health}})


@pytest.mark.parametrize(
    ("health", "frame", "kinds"),
    [
        ({}, {}, []),
        ({"control_age_s": 9.0, "samples_age_s": 9.0}, {}, []),
        (ALL_DOWN, {}, ["router", "control", "node"]),
        (ALL_DOWN, {"pools": {}}, ["control", "node"]),
        ({"samples_age_s": 40.0, "samples_expected": 0}, {}, []),
        ({"samples_age_s": 40.0}, {"nodes": SILENT}, ["node"]),
        ({}, {"nodes": SILENT}, ["silent-nodes"]),
        ({"routers_state": "late"}, {}, ["router"]),
        ({"routers_state": "none"}, {}, ["router"]),
        ({"read_only": True}, {}, ["database"]),
        ({"read_only": True, "control_age_s": 40.0}, {}, ["control"]),  # unknown whether it is still read-only
        ({**ALL_DOWN, "gap": [0.0, 22.0], "owed": OWED}, {}, ["returned"]),
        ({**ALL_DOWN, "gap": [0.0, 22.0], "owed": ["samples"]}, {}, ["returned", "router", "control"]),
        ({"gap": [0.0, 22.0], "owed": []}, {}, []),
        ({**ALL_DOWN, "gap": [0.0, 4.0], "owed": OWED}, {}, []),  # a busy machine
        ({**ALL_DOWN, "control_age_s": None, "gap": [22.0, 22.0], "owed": OWED}, {}, ["returned"]),  # an empty Redis
    ],
)
def test_a_frame_has_a_banner_for_each_silent_process_the_worst_first(
    health: dict[str, Any], frame: dict[str, Any], kinds: list[str]
) -> None:
    assert [banner["kind"] for banner in called_for(health, **frame)] == kinds


def test_a_banner_says_what_still_works_and_when_the_process_last_reported() -> None:
    router, control, node = called_for({**ALL_DOWN, "control_age_s": None, "routers_age_s": 100.0})
    assert (router["level"], router["ago"]) == ("error", "last report 100 s ago")
    assert control["text"].startswith("The control worker has not run")
    assert control["ago"] == ""
    assert node["text"].endswith("Requests are still routed.")
    (silent,) = called_for({}, nodes=SILENT)
    assert silent["text"] == "Node b does not report: the numbers of its 1 instance are old."
    (back,) = called_for({"gap": [0.0, 22.0], "owed": OWED})
    assert back["text"].startswith("Live state was away for 22 s and is back")
    (new,) = called_for({"gap": [22.0, 22.0], "owed": OWED})
    assert new["text"].startswith("Live state starts over")


def test_pages_without_a_frame_poll_for_banners(vera_client: Client, client: Client, live_redis: redis.Redis) -> None:
    assert vera_client.get("/requests/").status_code == 200  # importing all pages takes seconds
    FakeFleet(live_redis, size=2, routers=0).write(ahead())
    answer = vera_client.get("/live/banners").json()
    assert [banner["kind"] for banner in answer["banners"]] == ["returned"]
    assert 'data-watch="/live/banners"' in vera_client.get("/requests/").content.decode()
    assert client.get("/live/banners", headers={"HX-Request": "true"}).status_code == 204


def test_without_redis_pages_say_that_it_is_unreachable(vera_client: Client, redis_away: None) -> None:
    assert vera_client.get("/live/banners").json() == {"trouble": "redis", "banners": []}
