"""Two policies share a fleet, as they do while a candidate is delivered."""

from dataclasses import replace

import pytest

from controlplane.evidence.twin.simulation.tests.builders import asks, fleet, play, policy
from controlplane.evidence.twin.simulation.types import Arms

LIVE, CANDIDATE = policy("adaptive_v1"), policy("round_robin")
TRACE = [asks(number, number * 0.05, session=f"s{number % 12}", tokens=2_000) for number in range(120)]


def arms(*sessions: str) -> Arms:
    return Arms(CANDIDATE, lambda session, at_s: session in sessions)


def test_a_session_stays_in_its_arm() -> None:
    played = play(TRACE, policy=LIVE, arms=arms("s1", "s7"))
    assert {one.session for one in played.requests if one.candidate} == {"s1", "s7"}
    assert sum(one.candidate for one in played.requests) == 20


@pytest.mark.parametrize(("takes", "decides"), [(False, LIVE), (True, CANDIDATE)])
def test_with_one_empty_arm_the_other_decides_everything(takes: bool, decides: object) -> None:
    split = play(TRACE, policy=LIVE, arms=Arms(CANDIDATE, lambda session, at_s: takes)).requests
    alone = play(TRACE, policy=decides).requests
    assert [one.instance for one in split] == [one.instance for one in alone]
    assert [one.ttft_s for one in split] == [one.ttft_s for one in alone]


def test_arms_can_change_with_time() -> None:
    """The blocks of a switchback change the arm in this way."""
    played = play(TRACE, policy=LIVE, arms=Arms(CANDIDATE, lambda session, at_s: at_s >= 3.0))
    assert all(one.candidate == (one.sent_s >= 3.0) for one in played.requests)


def test_a_request_without_a_session_has_its_own_key() -> None:
    played = play([asks(0, tokens=1), asks(1, 1.0, tokens=1)], policy=LIVE, arms=arms())
    assert len({one.key for one in played.requests}) == 2


def test_in_both_arms_the_class_follows_the_thresholds_of_live() -> None:
    light = policy("round_robin", classes__warm_new_tokens=128, classes__heavy_new_tokens=256)
    played = play(
        [asks(0, session="a"), asks(1, 9.0, session="b")], policy=LIVE, arms=replace(arms("b"), candidate=light)
    )
    control, candidate = played.requests
    assert (control.arm_class, candidate.arm_class) == ("warm", "warm")
    assert candidate.request_class == "heavy"


def test_a_waiting_request_keeps_its_arm() -> None:
    """One engine that runs one request at a time: the others wait, and their arm decides them again."""
    small = policy("round_robin", admission__max_inflight_per_instance=1)
    played = play(
        [asks(n, n * 0.01, session=f"s{n}") for n in range(6)],
        fleet=fleet(1),
        policy=LIVE,
        arms=Arms(small, lambda session, at_s: at_s < 0.035),
    )
    assert [one.candidate for one in played.requests] == [True] * 4 + [False] * 2
    assert any(one.queued_s > 0 for one in played.requests if one.candidate)
