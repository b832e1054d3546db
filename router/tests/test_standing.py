"""What the policy sees of a pool's instances is at every moment what they are."""

from typing import Any

import pytest

from router.pool.endpoint import Lease, Member
from router.pool.fleet_view import Standing
from router.tests.conftest import entry

OPEN_S = 10.0


@pytest.fixture
def members() -> dict[str, Member]:
    return {name: Member(entry(name, "http://127.0.0.1:1")) for name in ("a", "b", "c")}


@pytest.fixture
def standing(members: dict[str, Member]) -> Standing:
    made = Standing()
    made.take(members)
    return made


def seen(standing: Standing, now: float = 0.0, **tried: str) -> dict[str, Any]:
    fleet = standing.fleet(tried, now, OPEN_S)
    return {
        one.id: one.refused or (running, one.prefill_tokens) for one, running in zip(fleet, fleet.running, strict=True)
    }


def lease(members: dict[str, Member]) -> Lease:
    return members["b"].lease(500)


def test_what_is_sent_begun_and_over_is_seen_at_once(standing: Standing, members: dict[str, Member]) -> None:
    assert seen(standing) == {"a": (0, 0), "b": (0, 0), "c": (0, 0)}
    sent = lease(members)
    assert seen(standing)["b"] == (1, 500)
    sent.first_byte()
    assert seen(standing)["b"] == (1, 0)
    sent.end()
    assert seen(standing)["b"] == (0, 0)


def test_what_has_not_changed_is_not_made_again(standing: Standing, members: dict[str, Member]) -> None:
    before = list(standing.fleet({}, 0.0, OPEN_S))
    lease(members)
    after = list(standing.fleet({}, 0.0, OPEN_S))
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]


def test_samples_and_the_load_of_other_routers_are_seen(standing: Standing, members: dict[str, Member]) -> None:
    seen(standing)
    members["a"].take_sample({"at": 1.0, "kv_usage": 0.5, "waiting": 4}, 1.0)
    members["c"].take_others((7, 70, 1))
    fleet = standing.fleet({}, 0.0, OPEN_S)
    assert (fleet[0].kv_usage, fleet.waiting[0]) == (0.5, 4)
    assert seen(standing)["c"] == (7, 70)


def test_an_instance_that_drains_is_refused(standing: Standing, members: dict[str, Member]) -> None:
    seen(standing)
    members["a"].update(entry("a", "http://127.0.0.1:1", routable=False, state="draining"))
    assert seen(standing)["a"] == "draining"


def test_a_breaker_that_opens_lets_go_with_time_alone(standing: Standing, members: dict[str, Member]) -> None:
    seen(standing)
    members["b"].breaker.failed(100.0, 1)
    members["b"].touch()
    assert seen(standing, 101.0)["b"] == "breaker open after 1 failures in a row"
    assert seen(standing, 109.0)["b"] == "breaker open after 1 failures in a row"
    assert seen(standing, 111.0)["b"] == (0, 0)
    members["b"].breaker.begin()
    assert seen(standing, 111.0)["b"] == "breaker half open: one request is trying it"
    members["b"].breaker.answered()
    assert seen(standing, 111.0)["b"] == (0, 0)
    assert not standing._suspects


def test_who_has_failed_a_request_is_refused_to_it_alone(standing: Standing) -> None:
    assert seen(standing, a="it was reset")["a"] == "it was reset"
    assert seen(standing)["a"] == (0, 0)


def test_another_life_of_an_instance_is_seen_and_the_old_one_no_more(
    standing: Standing, members: dict[str, Member]
) -> None:
    seen(standing)
    late = lease(members)
    standing.take({**members, "b": Member(entry("b", "http://127.0.0.1:2"))})
    late.first_byte()
    assert seen(standing)["b"] == (0, 0)
    standing.take({"c": members["c"]})
    late.end()
    assert seen(standing) == {"c": (0, 0)}
