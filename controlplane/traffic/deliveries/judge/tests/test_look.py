"""The transition that each verdict causes, in every state in which the judge looks."""

from typing import Any

import pytest

from controlplane.traffic.deliveries.judge import look
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.look import Situation, is_fine, propose
from controlplane.traffic.deliveries.judge.memory import Memory
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.states import Hold, State, Trigger

PLAN = parse_plan(
    {
        "steps": [
            {"mode": "shadow", "for_s": 600},
            {"mode": "canary", "share": 0.1, "for_s": 600, "max_s": 3600},
            {"mode": "switchback", "block_s": 300, "washout_s": 30, "pairs": 4},
            {"mode": "full"},
        ],
        "guards": [{"metric": "ttft", "worse": 0.1, "fine": 0.25}],
        "hold": {"no_data_s": 900},
    },
    pools=["demo"],
)
SHADOW, CANARY, SWITCHBACK, BAKE = range(4)


def at(step: int = CANARY, state: State = State.STEP, clock_s: float = 700.0, block: int = 0) -> Situation:
    return Situation(PLAN, state, step, clock_s, block, 8)


def finding(verdict: str = "fine", **changes: Any) -> GuardFinding:
    given = {"metric": "ttft", "text": verdict, "pool": "demo", "needed": True, **changes}
    return GuardFinding(verdict=verdict, **given)  # type: ignore[arg-type]


FINE, FAIL, OPEN, BLIND, WRONG = map(finding, ("fine", "fail", "inconclusive", "no_data", "error"))
PAUSING = finding("fail", effect="pause")
RARE, LEFT = finding("not_judged"), finding("deferred")


def what(
    situation: Situation, *findings: GuardFinding, without_data: float | None = None, now: float = 1_000.0
) -> Trigger:
    return propose(situation, findings, Memory(without_data=without_data), now).what


UNENDED = GuardFinding(metric=look.UNENDED, verdict="inconclusive", text="2 answers have not ended")


@pytest.mark.parametrize("state", [State.STEP, State.BAKING])
def test_a_failed_guard_aborts_while_the_candidate_decides(state: State) -> None:
    found = propose(at(state=state), (FINE, FAIL, WRONG), Memory(), 0.0)
    assert (found.what, found.why) == (Trigger.FAIL, "demo: fail")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.STEP, Trigger.PAUSE),
        (State.HOLDING, Trigger.GOOD),
        (State.BAKING, Trigger.FAIL),
    ],
)
def test_a_guard_may_pause_instead_of_abort(state: State, expected: Trigger) -> None:
    step = BAKE if state is State.BAKING else CANARY
    assert what(at(step, state), FINE, PAUSING) is expected


def test_an_error_causes_a_hold_and_never_an_abort() -> None:
    found = propose(at(), (FINE, WRONG), Memory(), 0.0)
    assert found.what is Trigger.HOLD
    assert found.holds == (Hold("ttft", "demo: error"),)


def test_an_error_prolongs_a_hold() -> None:
    assert what(at(state=State.HOLDING), WRONG) is Trigger.HOLD


@pytest.mark.parametrize("state", [State.WAITING, State.PAUSED])
def test_nothing_is_held_if_no_step_runs(state: State) -> None:
    assert what(at(state=state), WRONG) is Trigger.STAY


def test_a_look_without_an_error_is_a_good_one() -> None:
    assert what(at(state=State.HOLDING), OPEN) is Trigger.GOOD


@pytest.mark.parametrize(
    ("clock_s", "findings", "expected"),
    [
        (599.0, (FINE,), Trigger.STAY),
        (600.0, (FINE, FINE), Trigger.PASS),
        (600.0, (FINE, RARE), Trigger.PASS),
        (600.0, (FINE, OPEN), Trigger.STAY),
        (600.0, (FINE, BLIND), Trigger.STAY),
        (600.0, (FINE, LEFT), Trigger.PASS),
        (599.0, (FINE, LEFT), Trigger.STAY),
        (600.0, (OPEN, LEFT), Trigger.STAY),
        (600.0, (RARE, LEFT), Trigger.STAY),
        (600.0, (RARE,), Trigger.STAY),  # nothing was judged
        (600.0, (), Trigger.STAY),
        (600.0, (finding("inconclusive", needed=False), FINE), Trigger.PASS),
        (3600.0, (FINE, OPEN), Trigger.PAUSE),
        (3600.0, (RARE,), Trigger.PAUSE),
        (3600.0, (FINE,), Trigger.PASS),
    ],
)
def test_a_canary_passes_pauses_or_stays(clock_s: float, findings: tuple[GuardFinding, ...], expected: Trigger) -> None:
    assert what(at(clock_s=clock_s), *findings) is expected


def test_a_canary_that_pauses_says_what_was_not_fine() -> None:
    assert (
        propose(at(clock_s=3600.0), (FINE, OPEN), Memory(), 0.0).why
        == "not enough to go on after 1 h: demo: inconclusive"
    )
    assert (
        propose(at(clock_s=3600.0), (RARE,), Memory(), 0.0).why == "not enough to go on after 1 h: no class was judged"
    )


def test_a_canary_that_passes_names_first_what_it_defers_to_a_later_step() -> None:
    assert propose(at(), (FINE, LEFT), Memory(), 0.0).why == "10 % for 11 min 40 s: demo: deferred; fine"


def test_a_class_deferred_to_a_later_step_does_not_count_as_without_data() -> None:
    assert what(at(), OPEN, LEFT, without_data=0.0) is Trigger.STAY


@pytest.mark.parametrize(("since", "expected"), [(None, Trigger.STAY), (101.0, Trigger.STAY), (100.0, Trigger.PAUSE)])
@pytest.mark.parametrize("step", [SHADOW, CANARY])
def test_a_long_time_without_data_pauses(step: int, since: float | None, expected: Trigger) -> None:
    assert what(at(step), FINE, BLIND, without_data=since) is expected


@pytest.mark.parametrize(
    ("clock_s", "findings", "expected"),
    [(599.0, (), Trigger.STAY), (600.0, (), Trigger.PASS), (600.0, (BLIND,), Trigger.STAY)],
)
def test_a_shadow_passes_or_stays(clock_s: float, findings: tuple[GuardFinding, ...], expected: Trigger) -> None:
    assert what(at(SHADOW, clock_s=clock_s), *findings) is expected


@pytest.mark.parametrize(
    ("clock_s", "block", "findings", "expected"),
    [
        (299.0, 0, (BLIND,), Trigger.STAY),
        (300.0, 0, (BLIND,), Trigger.BLOCK),
        (300.0, 1, (BLIND,), Trigger.STAY),
        (2_399.0, 7, (FINE,), Trigger.STAY),
        (2_400.0, 7, (FINE,), Trigger.BLOCK),
        (2_400.0, 8, (FINE, UNENDED), Trigger.STAY),
        (2_400.0, 8, (FINE,), Trigger.PASS),
        (2_400.0, 8, (FINE, OPEN), Trigger.PAUSE),
        (2_400.0, 8, (BLIND,), Trigger.PAUSE),
        (300.0, 0, (FAIL,), Trigger.FAIL),
    ],
)
def test_a_switchback_passes_pauses_or_stays(
    clock_s: float, block: int, findings: tuple[GuardFinding, ...], expected: Trigger
) -> None:
    """A switchback is not compared before its end, however late the end is."""
    assert what(at(SWITCHBACK, clock_s=clock_s, block=block), *findings, without_data=0.0) is expected


@pytest.mark.parametrize("state", [State.WAITING, State.PAUSED, State.BAKING])
def test_nothing_passes_if_no_step_runs(state: State) -> None:
    assert what(at(BAKE if state is State.BAKING else CANARY, state), FINE) is Trigger.STAY


def test_no_finding_does_not_count_as_fine() -> None:
    assert not is_fine(())


def test_only_three_of_many_reasons_are_named_and_each_pool_once() -> None:
    assert propose(at(), (FAIL,) * 5, Memory(), 0.0).why == "demo: fail; fail; fail; 2 more"
    other = finding("fail", pool="chat")
    assert propose(at(), (FAIL, FAIL, other), Memory(), 0.0).why == "demo: fail; fail; chat: fail"


def test_a_finding_without_a_pool_is_named_alone() -> None:
    assert propose(at(), (finding("fail", pool=""),), Memory(), 0.0).why == "fail"
