import pytest

from controlplane.pages.delivery_pages.display import steps
from controlplane.pages.delivery_pages.tests.values import facts, plan
from controlplane.traffic.deliveries.states import State
from controlplane.traffic.deliveries.timing.durations import countdown, parse, words


def places(**more):
    return [row.place for row in steps.rows(facts(**more))]


def test_a_running_step_is_shown_between_done_and_next():
    assert places(state=State.STEP, step=2) == ["done", "done", "now", "next", "later"]


def test_before_the_start_no_step_is_done():
    assert places(state=State.PROPOSED) == ["next", "later", "later", "later", "later"]


def test_an_aborted_delivery_shows_where_it_ended():
    assert places(state=State.ABORTED, step=1) == ["done", "stopped", "later", "later", "later"]


def test_a_rejected_delivery_shows_no_step_as_ended():
    assert places(state=State.REJECTED) == ["later"] * 5


def test_all_steps_of_a_completed_delivery_are_done():
    assert places(state=State.DELIVERED, step=4) == ["done"] * 5
    assert places(state=State.BAKING, step=4)[-1] == "now"
    assert places(state=State.ROLLED_BACK, step=4)[-1] == "stopped"


def test_the_current_step_shows_its_clock():
    row = steps.rows(facts(State.STEP, step=2, clock_s=650))[2]
    assert (row.title, row.time, row.value, row.max) == ("Canary 25 %", "4:10 left of 15:00", "650", "900")
    assert row.needs == "at least 15 min, at most 1 h, then asks"


def test_late_stopped_and_passed_clocks_say_so():
    assert steps.rows(facts(State.STEP, step=1, clock_s=700))[1].time == "11:40 of at least 10:00"
    assert steps.rows(facts(State.PAUSED, step=1, clock_s=540))[1].time == "stopped with 1:00 left"
    assert steps.rows(facts(State.PAUSED, step=1, clock_s=700))[1].time == "stopped"
    assert steps.rows(facts(State.WAITING, step=2, clock_s=900))[2].time == "passed, asks to continue"
    assert steps.rows(facts(State.ARMING, step=1))[1].time == ""


def test_every_mode_has_a_title_and_says_what_it_can_show():
    sampled = plan({"mode": "shadow", "sample": 0.1, "for_s": 60}, {"mode": "full", "bake_s": 0})
    rows = steps.rows(facts(State.READY, plan=sampled))
    assert [(row.title, row.needs) for row in rows] == [
        ("Shadow of 10 %", "1 min"),
        ("Everyone", "at once, unwatched"),
    ]
    assert {row.mode for row in steps.rows(facts(State.READY))} == set(steps.SHOWS)


@pytest.mark.parametrize(("text", "seconds"), [("90 s", 90), ("10 min", 600), ("1 h 30 min", 5400), ("0.5m", 30)])
def test_durations_are_read_as_people_write_them(text, seconds):
    assert parse(text) == seconds
    assert parse(words(seconds)) == seconds


@pytest.mark.parametrize("text", ["soon", "10", "10 minutes long", ""])
def test_text_that_is_not_a_duration_is_refused(text):
    with pytest.raises(ValueError, match="is not a time; write 10 min"):
        parse(text)


def test_a_countdown_never_goes_below_zero():
    assert [countdown(seconds) for seconds in (-3, 9.6, 250, 3850)] == ["0:00", "0:10", "4:10", "1:04:10"]
