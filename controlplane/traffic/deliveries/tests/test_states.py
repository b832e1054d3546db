"""Every transition of the table, and properties of all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from controlplane.traffic.deliveries import states
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.types import Plan
from controlplane.traffic.deliveries.states import (
    CLOSED,
    OPEN,
    TABLE,
    Hold,
    Origin,
    Position,
    State,
    TransitionRefused,
    Trigger,
    next_position,
)
from controlplane.traffic.deliveries.tests.conftest import CANARY, FULL, SHADOW, STEPS

SWITCHBACK = {"mode": "switchback", "block_s": 60, "washout_s": 10, "pairs": 4}
BLOCKS = (0, 1, 1, 0, 1, 0, 0, 1)
HOLD = (Hold("error", "tallies are 20 s old"),)
FREEZE = (Hold("freeze", "freeze Christmas"),)


def parsed(*steps: dict) -> Plan:
    return parse_plan({"steps": list(steps or STEPS)}, pools=("demo",))


PLAN = parsed(SHADOW, CANARY, {**CANARY, "share": 0.25, "then": "ask"}, SWITCHBACK, FULL)
EVIDENCE = parsed(CANARY)
DIRECT = parsed({"mode": "full", "bake_s": 0})
AT = Position(State.STEP, step=1, generation=7, share=0.05, clock_s=30.0, blocks=BLOCKS)
ASKS = replace(AT, step=2, share=0.25)
SWITCHES = replace(AT, step=3, share=0.0)

# start, what, plan → state, step, share, generation
ROWS = [
    (State.PROPOSED, Trigger.APPROVE, State.READY),
    (State.PROPOSED, Trigger.REJECT, State.REJECTED),
    (State.PROPOSED, Trigger.EXPIRE, State.EXPIRED),
    (State.PROPOSED, Trigger.WITHDRAW, State.WITHDRAWN),
    (State.READY, Trigger.WITHDRAW, State.WITHDRAWN),
    (State.READY, Trigger.START, State.ARMING),
    (State.READY, Trigger.MISS, State.MISSED),
    (State.ARMING, Trigger.ARMED, State.STEP),
    (State.ARMING, Trigger.LATE, State.PAUSED),
    (State.STEP, Trigger.PASS, State.STEP),
    (State.STEP, Trigger.ADVANCE, State.STEP),
    (State.HOLDING, Trigger.ADVANCE, State.STEP),
    (State.WAITING, Trigger.ADVANCE, State.STEP),
    (State.STEP, Trigger.HOLD, State.HOLDING),
    (State.HOLDING, Trigger.HOLD, State.HOLDING),
    (State.HOLDING, Trigger.GOOD, State.HOLDING),
    *((start, Trigger.PAUSE, State.PAUSED) for start in (State.STEP, State.HOLDING, State.WAITING)),
    (State.PAUSED, Trigger.RESUME, State.ARMING),
    (State.PAUSED, Trigger.GIVE_UP, State.ABORTED),
    (State.BAKING, Trigger.DELIVER, State.DELIVERED),
    *((start, Trigger.ABORT, State.ABORTED) for start in sorted(OPEN - {State.BAKING})),
    (State.BAKING, Trigger.ABORT, State.ROLLED_BACK),
    (State.STEP, Trigger.FAIL, State.ABORTED),
    (State.BAKING, Trigger.FAIL, State.ROLLED_BACK),
    *((start, Trigger.TRIP, State.ABORTED) for start in sorted(states.SPLIT)),
    *((start, Trigger.OVERTAKE, State.ABORTED) for start in sorted(OPEN)),
    *((start, Trigger.ROLL_BACK, State.ABORTED) for start in sorted(OPEN - {State.BAKING})),
    (State.BAKING, Trigger.ROLL_BACK, State.ROLLED_BACK),
]
SPECIAL = {(Trigger.BLOCK, State.STEP)}  # these need a switchback
SPECIAL |= {(Trigger.EXTEND, state) for state in (State.STEP, State.HOLDING, State.PAUSED)}


@pytest.mark.parametrize(("start", "what", "end"), ROWS, ids=str)
def test_a_transition_leads_where_the_table_says(start: State, what: Trigger, end: State) -> None:
    assert next_position(replace(AT, state=start), what, PLAN, holds=HOLD).state is end


def test_the_rows_above_are_every_row_of_the_table() -> None:
    assert {(what, start) for start, what, _ in ROWS} | SPECIAL == set(TABLE)


@pytest.mark.parametrize("what", Trigger)
def test_other_transitions_are_refused_with_the_state_in_the_message(what: Trigger) -> None:
    for state in State:
        if (what, state) not in TABLE:
            with pytest.raises(TransitionRefused, match=f"the delivery is {state}"):
                next_position(replace(AT, state=state), what, PLAN)


def test_the_message_of_a_refusal_is_a_sentence() -> None:
    with pytest.raises(TransitionRefused, match="the delivery is baking: give up needs one that is paused"):
        next_position(replace(AT, state=State.BAKING), Trigger.GIVE_UP, PLAN)


def test_a_plan_with_only_the_step_full_goes_live_at_its_start() -> None:
    assert next_position(Position(State.READY), Trigger.START, DIRECT) == Position(State.BAKING, 0, 1)


def test_arming_splits_nothing() -> None:
    after = next_position(Position(State.READY, generation=3), Trigger.START, PLAN)
    assert (after.share, after.shadow, after.generation) == (0.0, 0.0, 4)


@pytest.mark.parametrize(("step", "share", "shadow"), [(0, 0.0, 1.0), (1, 0.05, 0.0), (2, 0.25, 0.0), (3, 0.0, 0.0)])
def test_a_step_begins_with_its_own_share_and_new_counts(step: int, share: float, shadow: float) -> None:
    before = Position(State.ARMING, step, 7, clock_s=99.0, holds_in_step=2, good_looks=1, blocks=BLOCKS, block=1)
    assert next_position(before, Trigger.ARMED, PLAN) == Position(State.STEP, step, 8, share, shadow, blocks=BLOCKS)


STOPS = [
    *((state, Trigger.PAUSE, HOLD) for state in (State.STEP, State.HOLDING, State.WAITING)),
    (State.STEP, Trigger.HOLD, HOLD),
    (State.STEP, Trigger.HOLD, FREEZE),
    (State.ARMING, Trigger.LATE, ()),
]


@pytest.mark.parametrize("running", [AT, ASKS, replace(SWITCHES, block=1, share=1.0), replace(AT, step=0, shadow=1.0)])
@pytest.mark.parametrize(("state", "what", "holds"), STOPS)
def test_a_stalled_delivery_leaves_every_request_to_live(running, state, what, holds) -> None:
    before = running if state is State.STEP else replace(running, state=state, share=0.0, shadow=0.0)
    after = next_position(before, what, PLAN, holds=holds)
    assert after.state in states.STILL
    assert (after.share, after.shadow, after.generation) == (0.0, 0.0, 7 + (state is State.STEP))


def test_a_step_that_asks_for_approval_waits_with_every_request_on_live() -> None:
    after = next_position(ASKS, Trigger.PASS, PLAN)
    assert (after.state, after.share, after.generation) == (State.WAITING, 0.0, 8)


def test_a_person_who_advances_a_step_that_asks_for_approval_is_not_asked() -> None:
    assert next_position(ASKS, Trigger.ADVANCE, PLAN).step == 3


def test_the_last_step_before_full_makes_the_candidate_live() -> None:
    after = next_position(SWITCHES, Trigger.PASS, PLAN)
    assert (after.state, after.step, after.share, after.generation) == (State.BAKING, 4, 0.0, 8)


def test_without_the_step_full_the_last_step_finishes_with_every_request_on_live() -> None:
    after = next_position(replace(AT, step=0), Trigger.PASS, EVIDENCE)
    assert (after.state, after.share, after.generation) == (State.FINISHED, 0.0, 8)


def test_a_block_of_a_switchback_has_the_share_that_was_drawn() -> None:
    shares = []
    at = SWITCHES
    for _ in BLOCKS[1:]:
        at = next_position(at, Trigger.BLOCK, PLAN)
        shares.append(at.share)
    assert shares == [float(block) for block in BLOCKS[1:]]
    assert at.generation == 7 + len(shares)
    over = next_position(at, Trigger.BLOCK, PLAN)
    assert (over.block, over.share, over.generation) == (len(BLOCKS), 0.0, at.generation + 1)
    at = over
    with pytest.raises(TransitionRefused, match="no further block"):
        next_position(at, Trigger.BLOCK, PLAN)


def test_only_a_switchback_has_blocks() -> None:
    with pytest.raises(TransitionRefused, match="step 2 is no switchback"):
        next_position(AT, Trigger.BLOCK, PLAN)


def test_three_good_looks_in_a_row_end_a_hold() -> None:
    at = next_position(AT, Trigger.HOLD, PLAN, holds=HOLD)
    for _ in range(2):
        at = next_position(at, Trigger.GOOD, PLAN)
    at = next_position(at, Trigger.HOLD, PLAN, holds=HOLD)
    assert (at.state, at.good_looks) == (State.HOLDING, 0)
    for _ in range(3):
        assert at.state is State.HOLDING
        at = next_position(at, Trigger.GOOD, PLAN)
    assert (at.state, at.holds, at.share, at.generation) == (State.STEP, (), 0.05, 9)


def test_the_end_of_a_hold_begins_the_step_again() -> None:
    at = next_position(AT, Trigger.HOLD, PLAN, holds=HOLD)
    assert at.clock_s == 30.0
    for _ in range(3):
        at = next_position(at, Trigger.GOOD, PLAN)
    assert (at.clock_s, at.holds_in_step) == (0.0, 1)


@pytest.mark.parametrize(("block", "kept"), [(0, 0), (1, 0), (2, 2), (5, 4), (8, 8)])
@pytest.mark.parametrize("state", [State.HOLDING, State.ARMING])
def test_a_switchback_continues_after_the_last_complete_pair(state: State, block: int, kept: int) -> None:
    at = replace(SWITCHES, state=state, block=block, good_looks=2, clock_s=1e6)
    after = next_position(at, Trigger.GOOD if state is State.HOLDING else Trigger.ARMED, PLAN)
    share = float(BLOCKS[kept]) if kept < len(BLOCKS) else 0.0
    assert (after.state, after.block, after.share, after.clock_s) == (State.STEP, kept, share, 60.0 * kept)


LONGER = (*BLOCKS, 1, 0)


def test_a_running_switchback_is_extended_in_place() -> None:
    after = next_position(SWITCHES, Trigger.EXTEND, PLAN, blocks=LONGER)
    assert after == replace(SWITCHES, blocks=LONGER)


def test_an_extended_switchback_whose_blocks_are_over_continues_with_the_next_one() -> None:
    after = next_position(replace(SWITCHES, block=8), Trigger.EXTEND, PLAN, blocks=LONGER)
    assert (after.state, after.block, after.share, after.generation) == (State.STEP, 8, 1.0, 8)


def test_a_paused_switchback_that_is_extended_arms_and_continues_after_its_pairs() -> None:
    paused = replace(SWITCHES, state=State.PAUSED, block=8)
    arming = next_position(paused, Trigger.EXTEND, PLAN, blocks=LONGER)
    assert (arming.state, arming.share) == (State.ARMING, 0.0)
    after = next_position(arming, Trigger.ARMED, PLAN)
    assert (after.block, after.share, after.blocks) == (8, 1.0, LONGER)


def test_only_a_switchback_can_be_extended() -> None:
    with pytest.raises(TransitionRefused, match="step 2 is no switchback: only a switchback is extended"):
        next_position(AT, Trigger.EXTEND, PLAN, blocks=LONGER)


def test_the_third_hold_of_a_step_pauses_it() -> None:
    at = AT
    for _ in range(2):
        at = next_position(at, Trigger.HOLD, PLAN, holds=HOLD)
        assert at.state is State.HOLDING
        for _ in range(3):
            at = next_position(at, Trigger.GOOD, PLAN)
    assert next_position(at, Trigger.HOLD, PLAN, holds=HOLD).state is State.PAUSED


def test_holds_by_freezes_do_not_lead_to_a_pause() -> None:
    at = AT
    for _ in range(5):
        at = next_position(at, Trigger.HOLD, PLAN, holds=FREEZE)
        assert at.state is State.HOLDING
        for _ in range(3):
            at = next_position(at, Trigger.GOOD, PLAN)
    assert at.holds_in_step == 0


# Properties of all

POSITIONS = st.builds(
    Position,
    state=st.sampled_from(State),
    step=st.integers(0, 3),
    generation=st.integers(0, 1000),
    share=st.sampled_from([0.0, 0.05, 0.25, 1.0]),
    shadow=st.sampled_from([0.0, 1.0]),
    clock_s=st.floats(0, 1e6),
    holds_in_step=st.integers(0, 2),
    good_looks=st.integers(0, 2),
    blocks=st.just(BLOCKS),
    block=st.integers(0, 6),
)


def led(at: Position, what: Trigger) -> Position | None:
    try:
        return next_position(at, what, PLAN, holds=HOLD, blocks=LONGER)
    except TransitionRefused:
        return None


@given(POSITIONS, st.sampled_from(Trigger))
def test_nothing_leaves_a_closed_state(at: Position, what: Trigger) -> None:
    if at.state in CLOSED:
        assert led(at, what) is None


@given(POSITIONS, st.sampled_from(Trigger))
def test_every_change_of_a_share_raises_the_generation_and_nothing_lowers_it(at: Position, what: Trigger) -> None:
    after = led(at, what)
    if after is not None:
        assert after.generation >= at.generation
        if (after.share, after.shadow) != (at.share, at.shadow) and at.state in states.SPLIT:
            assert after.generation > at.generation


@given(POSITIONS, st.sampled_from(Trigger))
def test_the_candidate_decides_only_in_a_step(at: Position, what: Trigger) -> None:
    after = led(at, what)
    came_from_step = at.state is State.STEP or at.share == at.shadow == 0
    if after is not None and came_from_step and after.state is not State.STEP:
        assert (after.share, after.shadow) == (0.0, 0.0)


@given(st.lists(st.sampled_from(sorted(set(Trigger) - {Trigger.ABORT, Trigger.FAIL, Trigger.TRIP})), max_size=60))
def test_only_a_start_and_the_steps_of_the_plan_lead_to_live(whats: list[Trigger]) -> None:
    """A delivery that reaches the bake has started, and has passed or advanced every step."""
    at, seen = replace(Position(State.READY), blocks=BLOCKS), []
    for what in whats:
        after = led(at, what)
        if after is None:
            continue
        seen.append(what)
        at = after
        if at.state is State.BAKING:
            assert Trigger.START in seen
            assert seen.count(Trigger.PASS) + seen.count(Trigger.ADVANCE) >= len(PLAN.steps) - 1
            return


def test_only_people_let_a_proposal_pass_and_only_the_judge_fails_one() -> None:
    assert all(rule.who == {Origin.PERSON} for rule in states.RULES if rule.what in (Trigger.APPROVE, Trigger.ADVANCE))
    assert all(rule.who == {Origin.JUDGE} for rule in states.RULES if rule.what in (Trigger.FAIL, Trigger.PASS))
