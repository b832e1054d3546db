"""Every state says what runs where, what happens next and when, and how to stop it."""

from dataclasses import replace

import pytest

from controlplane.pages.delivery_pages import reading, report
from controlplane.pages.delivery_pages.display import sentences
from controlplane.pages.delivery_pages.tests.values import NOW, facts, plan
from controlplane.traffic.deliveries.states import CLOSED, OPEN, State


def test_a_canary_states_both_shares():
    said = sentences.now(facts(State.STEP, step=2, share=0.25))
    assert said == "v44 decides 25 % of the requests of pool chat; v43 decides the other 75 %."


def test_a_shadow_affects_no_request():
    said = sentences.now(facts(State.STEP, shadow=1.0))
    assert said == "v43 decides every request of pool chat; v44 only tries to decide each."


def test_a_switchback_says_whose_block_it_is():
    assert sentences.now(facts(State.STEP, step=3, share=1.0)).startswith("v44 decides every request")
    assert sentences.now(facts(State.STEP, step=3, share=0.0)).startswith("v43 decides every request")


@pytest.mark.parametrize("state", [State.HOLDING, State.WAITING, State.PAUSED])
@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_live_decides_everything_while_the_delivery_is_stalled(state, step):
    said = sentences.now(facts(state, step=step))
    assert said == "v43 decides every request of pool chat while this stands still."


@pytest.mark.parametrize("state", [State.STEP, State.HOLDING])
def test_without_a_judge_the_candidate_decides_nothing_whatever_the_plan_says(state):
    left = facts(state, step=2, share=0.25, clock_s=60, unjudged_s=45.0, unwatched_s=45.0)
    assert sentences.now(left) == (
        "v43 decides every request of pool chat: routers gave up this step, as nobody judged it for 45 s."
    )
    assert sentences.following(left) == sentences.Next("It pauses as soon as someone looks at it again")
    assert sentences.stopping(left) == "Abort ends it; v43 decides every request already."
    shown = reading.shown(left)
    assert shown.word == "not judged"
    assert (shown.bar, {row.time for row, _ in shown.steps}, report.next_at(left)) == (None, {""}, None)


@pytest.mark.parametrize(("state", "step"), [(State.ARMING, 2), (State.STEP, 2), (State.BAKING, 4)])
def test_without_a_judge_nothing_counts_down(state, step):
    judged = facts(state, step=step, share=0.25, clock_s=60)
    left = replace(judged, unjudged_s=15.0)
    assert sentences.now(left) == sentences.now(judged)
    assert sentences.following(left) == sentences.Next("It continues as soon as someone looks at it again")
    shown = reading.shown(left)
    assert (shown.word, shown.notice) == ("not judged", "Not judged: nobody has looked at it for 15 s.")
    assert ({row.time for row, _ in shown.steps}, report.next_at(left)) == ({""}, None)


def test_a_switchback_names_the_current_block_and_its_end():
    said = sentences.now(facts(State.STEP, step=3, share=1.0, block=2, blocks=12, clock_s=770))
    assert said == "v44 decides every request of pool chat: block 3 of 12, 2:10 left; the versions take turns."


def test_a_switchback_whose_blocks_are_over_names_what_it_waits_for():
    said = sentences.now(facts(State.STEP, step=3, block=12, blocks=12, clock_s=3602))
    assert said.endswith("every block is over, and answers that have not ended are waited for.")


def test_a_hold_by_a_freeze_says_when_it_ends():
    said = sentences.following(facts(State.HOLDING, step=1, freeze_ends="2026-08-02 02:00 (Europe/Berlin)"))
    assert said.what == "The step begins again when the freeze ends at 2026-08-02 02:00 (Europe/Berlin)"


def test_a_candidate_that_is_live_decides_everything():
    assert sentences.now(facts(State.BAKING, step=4)) == "v44 decides every request of pool chat."


ENDS = [
    (State.DELIVERED, "deliver", "When it ended, v44 decided every request of pool chat."),
    (State.FINISHED, "pass", "When it ended, v43 decided every request of pool chat."),
    (State.ABORTED, "fail", "When it ended, v43 decided every request of pool chat."),
    (State.ABORTED, "overtake", "It ended when another version went live for every request of pool chat."),
    (State.ABORTED, "roll_back", "It ended when an older version came back for every request of pool chat."),
    (State.ROLLED_BACK, "roll_back", "It ended when an older version came back for every request of pool chat."),
    (State.ROLLED_BACK, "fail", "When it ended, the values of v43 decided every request of pool chat again."),
    (State.REJECTED, "reject", "It never began: v43 decided every request of pool chat throughout."),
    (State.EXPIRED, "expire", "It never began: v43 decided every request of pool chat throughout."),
    (State.WITHDRAWN, "withdraw", "It never began: v43 decided every request of pool chat throughout."),
    (State.MISSED, "miss", "It never began: v43 decided every request of pool chat throughout."),
]


@pytest.mark.parametrize(("state", "what", "said"), ENDS)
def test_an_ended_delivery_says_in_the_past_tense_what_decided(state, what, said):
    assert sentences.now(facts(state, what=what)) == said


def test_every_final_state_has_its_sentence_in_the_past_tense():
    assert {state for state, *_ in ENDS} == CLOSED


@pytest.mark.parametrize("state", sorted(OPEN))
def test_only_an_ended_delivery_names_the_version_that_is_live_now(state):
    assert reading.shown(facts(state, live="v45")).live == ""
    assert reading.shown(facts(State.DELIVERED, live="v45")).live == "v45"


@pytest.mark.parametrize("state", [State.PROPOSED, State.READY, State.ARMING])
def test_before_the_first_step_the_live_version_decides_everything(state):
    assert sentences.now(facts(state)) == "v43 decides every request of pool chat."


def test_a_step_names_what_follows_it_when_and_on_which_condition():
    said = sentences.following(facts(State.STEP, step=1, share=0.05, clock_s=350, undecided=("heavy TTFT",)))
    assert said == sentences.Next("Canary 25 %", 250, "if heavy TTFT is enough to go on", "it pauses", NOW + 3600 - 350)


def test_a_step_that_needs_approval_says_so():
    said = sentences.following(facts(State.STEP, step=2, share=0.25, clock_s=0, undecided=("a", "b")))
    assert (said.what, said.provided) == ("it asks to advance to switchback", "if a and b are enough to go on")


def test_a_step_whose_time_is_over_waits_for_undecided_guards():
    said = sentences.following(facts(State.STEP, step=1, share=0.05, clock_s=700, undecided=("heavy TTFT",)))
    assert (said.in_s, said.provided, said.otherwise) == (None, "as soon as heavy TTFT is enough to go on", "it pauses")


def test_a_shadow_passes_unless_a_guard_fails():
    assert sentences.following(facts(State.STEP, shadow=1.0, clock_s=590)) == sentences.Next(
        "Canary 5 %", 10, "if no guard fails"
    )


def test_a_plan_without_the_step_full_leaves_live_unchanged():
    only = plan({"mode": "shadow", "for_s": 60})
    assert sentences.following(facts(State.STEP, plan=only)).what == "the plan ends and v43 stays live"


def test_a_planned_start_states_its_time_and_zone():
    timed = plan({"mode": "shadow", "for_s": 60}, start={"at": "2036-08-03T03:00", "zone": "Europe/Berlin"})
    assert sentences.following(facts(State.READY, plan=timed)).what == (
        "Shadow starts by itself on 2036-08-03 at 03:00 (Europe/Berlin)"
    )
    assert sentences.following(facts(State.READY)).what == "Shadow, when somebody presses Start"


def test_a_proposal_says_what_is_missing_and_when_it_ends():
    said = sentences.following(facts(State.PROPOSED, approvals_missing=2, ends_at=NOW + 60))
    assert (said.what, said.otherwise, said.otherwise_at) == (
        "Ready to start after 2 approvals",
        "it expires",
        NOW + 60,
    )


def test_the_bake_says_which_version_a_rollback_restores():
    said = sentences.following(facts(State.BAKING, step=4, clock_s=110))
    assert (said.what, said.in_s) == ("Delivered", 1690)
    assert "otherwise v43 comes back" in said.provided


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_a_description_a_next_step_and_a_way_to_stop(state):
    shown = facts(state, step=1)
    assert sentences.WORDS[state][0]
    assert sentences.following(shown).what
    assert "Abort" in sentences.stopping(shown)
