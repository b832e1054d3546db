"""The policy's view of a pool's instances is correct at every moment."""

from typing import Any

import pytest

from router.contract.redis.sample import InstanceSample
from router.pool.endpoint import Endpoint
from router.pool.fleet_view import FleetView
from router.pool.lease import Lease
from router.tests.conftest import instance

OPEN_S = 10.0


@pytest.fixture
def endpoints() -> dict[str, Endpoint]:
    return {name: Endpoint(instance(name, "http://127.0.0.1:1")) for name in ("a", "b", "c")}


@pytest.fixture
def fleet_view(endpoints: dict[str, Endpoint]) -> FleetView:
    made = FleetView()
    made.take(endpoints)
    return made


def seen(fleet_view: FleetView, now: float = 0.0, **tried: str) -> dict[str, Any]:
    fleet = fleet_view.fleet(tried, now, OPEN_S)
    return {
        one.id: one.refused or (running, one.prefill_tokens) for one, running in zip(fleet, fleet.running, strict=True)
    }


def lease(endpoints: dict[str, Endpoint]) -> Lease:
    return endpoints["b"].lease(500, lambda: None)


def test_requests_show_when_they_are_sent_begin_and_end(fleet_view: FleetView, endpoints: dict[str, Endpoint]) -> None:
    assert seen(fleet_view) == {"a": (0, 0), "b": (0, 0), "c": (0, 0)}
    sent = lease(endpoints)
    assert seen(fleet_view)["b"] == (1, 500)
    sent.first_content()
    assert seen(fleet_view)["b"] == (1, 0)
    sent.end()
    assert seen(fleet_view)["b"] == (0, 0)


def test_unchanged_instances_are_not_rebuilt(fleet_view: FleetView, endpoints: dict[str, Endpoint]) -> None:
    sample = InstanceSample(id="b", epoch=1, at=100.0, kv_usage=0.4, waiting=2)
    endpoints["b"].take_sample(sample, 100.0)
    before = list(fleet_view.fleet({}, 0.0, OPEN_S))
    endpoints["b"].take_sample(sample, 101.0)
    lease(endpoints)
    after = list(fleet_view.fleet({}, 0.0, OPEN_S))
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]


def test_samples_and_other_routers_load_show_at_once(fleet_view: FleetView, endpoints: dict[str, Endpoint]) -> None:
    seen(fleet_view)
    endpoints["a"].take_sample(InstanceSample(id="a", epoch=1, at=1.0, kv_usage=0.5, waiting=4), 1.0)
    endpoints["c"].take_others((7, 70, 1))
    fleet = fleet_view.fleet({}, 0.0, OPEN_S)
    assert (fleet[0].kv_usage, fleet.waiting[0]) == (0.5, 4)
    assert seen(fleet_view)["c"] == (7, 70)


def test_an_instance_that_drains_is_refused(fleet_view: FleetView, endpoints: dict[str, Endpoint]) -> None:
    seen(fleet_view)
    endpoints["a"].update(instance("a", "http://127.0.0.1:1", routable=False, state="draining"))
    assert seen(fleet_view)["a"] == "draining"


def test_an_open_breaker_closes_after_a_time(fleet_view: FleetView, endpoints: dict[str, Endpoint]) -> None:
    seen(fleet_view)
    endpoints["b"].breaker.failed(100.0, 1)
    endpoints["b"].touch()
    assert seen(fleet_view, 101.0)["b"] == "breaker open after 1 failures in a row"
    assert seen(fleet_view, 109.0)["b"] == "breaker open after 1 failures in a row"
    assert seen(fleet_view, 111.0)["b"] == (0, 0)
    endpoints["b"].breaker.begin()
    assert seen(fleet_view, 111.0)["b"] == "breaker half open: one request is trying it"
    endpoints["b"].breaker.answered()
    assert seen(fleet_view, 111.0)["b"] == (0, 0)
    assert not fleet_view._suspects


def test_views_of_a_part_and_of_the_whole_pool_see_the_same_changes(
    fleet_view: FleetView, endpoints: dict[str, Endpoint]
) -> None:
    seen(fleet_view)
    endpoints["b"].take_pace(0.5)
    parts = [fleet_view.part({"a", "b"}, "no adapter"), fleet_view.part({"b"}, "no adapter")]
    sent = lease(endpoints)
    for view, others in zip((*parts, fleet_view), ({"a"}, set(), {"a", "c"}), strict=True):
        assert seen(view) == {"b": (1, 500), **dict.fromkeys(others, (0, 0))}
        assert view.fleet({}, 0.0, OPEN_S).is_paced
    sent.end()
    endpoints["b"].breaker.failed(100.0, 1)
    endpoints["b"].touch()
    for view in (parts[1], fleet_view, parts[0]):
        assert seen(view, 101.0)["b"] == "breaker open after 1 failures in a row"
        assert seen(view, 111.0)["b"] == (0, 0)
    assert [view.fleet({}, 0.0, OPEN_S).left_out for view in (*parts, fleet_view)] == [
        {"no adapter": 1},
        {"no adapter": 2},
        {},
    ]
    assert parts[0].fleet({"a": "it was reset"}, 0.0, OPEN_S).left_out == {"no adapter": 1}


def test_an_instance_that_failed_a_request_is_refused_to_that_request_only(fleet_view: FleetView) -> None:
    assert seen(fleet_view, a="it was reset")["a"] == "it was reset"
    assert seen(fleet_view)["a"] == (0, 0)


def test_a_new_epoch_of_an_instance_replaces_the_old_one(fleet_view: FleetView, endpoints: dict[str, Endpoint]) -> None:
    seen(fleet_view)
    late = lease(endpoints)
    fleet_view.take({**endpoints, "b": Endpoint(instance("b", "http://127.0.0.1:2"))})
    late.first_content()
    assert seen(fleet_view)["b"] == (0, 0)
    fleet_view.take({"c": endpoints["c"]})
    late.end()
    assert seen(fleet_view) == {"c": (0, 0)}
