from typing import Any

import pytest

from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.shadow import Interval, judge
from router.contract.redis.delivery import ShadowTally

EVEN = {"a": 500, "b": 500}


def found(previewed: Interval | None = None, **changes: Any) -> dict[str, GuardFinding]:
    given = {"n": 1_000, "changed": 200, "to": EVEN, "live_to": EVEN, **changes}
    return {each.metric.removeprefix("shadow."): each for each in judge(ShadowTally(**given), previewed)}


def test_an_uneventful_shadow_is_fine() -> None:
    assert {each.verdict for each in found((0.1, 0.3)).values()} == {"fine"}


def test_an_exception_aborts() -> None:
    raised = found(raised=1)["raised"]
    assert (raised.verdict, raised.effect) == ("fail", "abort")
    assert raised.text == "the candidate could not decide 1 of 1000 requests"


def test_an_exception_aborts_before_anything_else_is_known() -> None:
    assert found(n=2, raised=1)["raised"].verdict == "fail"


def test_few_requests_count_as_no_data() -> None:
    assert found(n=29)["shadow"].verdict == "no_data"
    assert "refused" not in found(n=29)


@pytest.mark.parametrize(("more", "verdict"), [(0, "fine"), (12, "fine"), (60, "fail")])
def test_a_candidate_that_refuses_what_live_serves_pauses_the_delivery(more: int, verdict: str) -> None:
    refused = found(refused_more=more)["refused"]
    assert (refused.verdict, refused.effect) == (verdict, "pause")


@pytest.mark.parametrize(
    ("to", "live_to", "verdict"),
    [
        ({"a": 950, "b": 50}, {"a": 500, "b": 500}, "fine"),  # less than twice the number
        ({"a": 850, "b": 50, "c": 50, "d": 50}, {"a": 250, "b": 250, "c": 250, "d": 250}, "fail"),
        ({"a": 250, "b": 250, "c": 250, "d": 250}, {"a": 1_000}, "fine"),  # spreads requests more than live
        ({}, {}, "fine"),
    ],
)
def test_twice_lives_share_on_one_instance_pauses(to: dict[str, int], live_to: dict[str, int], verdict: str) -> None:
    crowded = found(to=to, live_to=live_to)["crowded"]
    assert (crowded.verdict, crowded.effect) == (verdict, "pause")


@pytest.mark.parametrize(
    ("previewed", "verdict"), [((0.15, 0.25), "fine"), ((0.5, 0.6), "fail"), ((0.01, 0.02), "fail"), (None, "fine")]
)
def test_changes_outside_the_previews_interval_pause(previewed: Interval | None, verdict: str) -> None:
    changed = found(previewed)["changed"]
    assert (changed.verdict, changed.effect) == (verdict, "pause")
    assert ("no preview" in changed.text) is (previewed is None)
