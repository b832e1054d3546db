from datetime import UTC, datetime

import pytest

from controlplane.pages.delivery_pages import reading, report
from controlplane.pages.delivery_pages.display import evidence, over_time
from controlplane.pages.delivery_pages.display.evidence import WIDTH, points_axis, ratio_axis
from controlplane.pages.delivery_pages.tests.values import NOW, facts, finding, plan
from controlplane.traffic.deliveries import results
from controlplane.traffic.deliveries.states import State, Trigger


def test_a_comparison_shows_estimate_interval_limits_and_verdict():
    row = evidence.rows([finding()])[0]
    assert (row.title, row.estimate, row.interval) == ("heavy TTFT", "1.04×", "0.97 to 1.12×")
    assert row.limits == "fails above 1.10×, enough to go on below 1.25×"
    assert (row.n, row.cells, row.verdict) == ("204", "31", "too few to tell")
    assert row.text == "surely less than 1.25× slower; 1.10× not excluded"


@pytest.mark.parametrize(
    ("metric", "verdict", "bounds", "words", "shape"),
    [
        ("slow", "inconclusive", (-0.24, 0.28), "too few to tell", "unseen"),
        ("slow", "inconclusive", (0.07, 0.70), "worse, not surely beyond the limit", "warning"),
        ("slow", "inconclusive", (-0.05, 0.09), "no harm", "done"),
        ("slow", "inconclusive", (None, None), "too few to tell", "unseen"),
        ("slow", "fail", (0.2, 0.7), "fails", "failed"),
        ("ttft", "fine", (-0.05, 0.09), "no harm", "done"),
        ("ttft", "fine", (0.02, 0.09), "worse, within the limit", "done"),
        ("ttft", "fine", (-0.05, 0.24), "enough to go on", "done"),
        ("ttft", "fine", (0.01, 0.24), "worse, not surely beyond the limit", "warning"),
        ("ttft", "inconclusive", (-0.05, 0.5), "too few to tell", "unseen"),
        ("ttft", "inconclusive", (0.2, 0.5), "beyond the limit so far", "warning"),
        ("ttft", "no_data", (None, None), "too few requests", "unseen"),
    ],
)  # fmt: skip
def test_a_guard_says_no_harm_only_if_its_whole_interval_is_within_the_limit(metric, verdict, bounds, words, shape):
    lower, upper = bounds
    row = evidence.rows([finding(metric, verdict=verdict, lower=lower, upper=upper)])[0]
    assert (row.verdict, row.shape) == (words, shape)


@pytest.mark.parametrize(
    ("metric", "bounds", "said"),
    [
        ("ttft", (-0.05, 0.0999), "0.95 to 1.0999×"),
        ("ttft", (0.1004, 0.2), "1.1004 to 1.20×"),
        ("ttft", (-0.05, 0.1), "0.95 to 1.10×"),
        ("slow", (-0.05, 0.0998), "−5.0 to +9.98 points"),
    ],
)
def test_an_interval_does_not_seem_to_touch_a_limit_that_it_does_not_reach(metric, bounds, said):
    lower, upper = bounds
    assert evidence.rows([finding(metric, lower=lower, upper=upper)])[0].interval == said


def test_without_errors_but_with_few_requests_there_are_too_few_to_tell():
    words = {
        n: evidence.rows([finding("shadow.raised", "", verdict="fine", estimate=None, n=(n, 0))])[0].verdict
        for n in (1, 30)
    }
    assert words == {1: "too few to tell", 30: "no harm"}


@pytest.mark.parametrize(
    ("n", "rates", "words"),
    [
        ((12, 300), (0.0, 0.0), "too few to tell"),
        ((204, 1900), (0.01, 0.01), "no harm"),
        ((204, 1900), (0.02, 0.01), "worse, not surely beyond the limit"),
        ((204, 1900), (None, None), "too few to tell"),
    ],
)
def test_a_count_that_does_not_fail_has_the_same_three_states(n, rates, words):
    candidate, control = rates
    found = finding("errors", "", estimate=None, n=n, candidate=candidate, control=control, worse=1.5, needed=False)
    assert evidence.rows([found])[0].verdict == words


@pytest.mark.parametrize(
    ("metric", "verdict", "needed", "words"),
    [
        ("arms", "fine", False, "as expected"),
        ("breaker", "inconclusive", False, "no harm found"),
        ("prometheus", "inconclusive", True, "not decided yet"),
        ("pool.ttft_p90_ms", "fine", False, "no harm"),
    ],
)
def test_a_guard_without_a_comparison_says_what_it_found(metric, verdict, needed, words):
    assert evidence.rows([finding(metric, "", verdict=verdict, needed=needed)])[0].verdict == words


def test_a_guard_that_can_only_fail_has_one_limit():
    row = evidence.rows([finding("slow", verdict="inconclusive")])[0]
    assert (row.estimate, row.limits) == ("+4 points", "fails above +10 points")


def test_an_ended_delivery_is_described_in_the_past_tense():
    fine, open_ = finding(verdict="fine"), finding("tpot", "warm")
    assert evidence.verdict([fine, open_], past=True) == (
        "Nothing failed; heavy TTFT was enough to go on; warm TPOT was not decided."
    )


def test_counts_show_both_rates():
    row = evidence.rows([finding("errors", "", estimate=None, candidate=0.02, control=0.01, worse=1.5)])[0]
    assert (row.title, row.estimate, row.limits, row.axis) == ("Errors", "2 % against 1 %", "fails above 1.5×", None)
    assert row.text == "one sentence"


def test_a_finding_without_numbers_shows_its_sentence():
    row = evidence.rows([finding(estimate=None, lower=None, upper=None, verdict="no_data")])[0]
    assert (row.verdict, row.estimate, row.text, row.axis) == ("too few requests", "", "one sentence", None)


def test_an_infinite_limit_is_stated_and_cut_off_on_the_axis():
    row = evidence.rows([finding(lower=None, upper=None)])[0]
    assert row.interval == "0.00 to any"
    assert row.axis is not None
    assert (row.axis.cut_low, row.axis.cut_high) == (True, True)


def test_several_pools_are_distinguished():
    rows = evidence.rows([finding(), finding(pool="code")])
    assert [row.title for row in rows] == ["heavy TTFT, chat", "heavy TTFT, code"]


def test_the_verdict_names_what_fails_first():
    fine, open_, failed = finding(verdict="fine"), finding("tpot", "warm"), finding(verdict="fail")
    said = evidence.verdict([fine, open_])
    assert said == "Nothing fails; heavy TTFT is enough to go on; warm TPOT is not decided yet."
    assert evidence.verdict([open_, failed]) == "Failed: heavy TTFT."
    assert evidence.verdict([]) == ""
    assert evidence.undecided([fine, open_, failed]) == ("warm TPOT",)


def test_a_finding_deferred_to_a_later_step_has_a_reason_and_delays_nothing():
    few, wide = finding("tpot", "warm", verdict="deferred", estimate=None), finding(verdict="deferred")
    for left in (few, wide):
        row = evidence.rows([left])[0]
        assert (row.verdict, row.text) == ("left to a later step", "one sentence")
        assert evidence.undecided([left]) == ()
    said = evidence.verdict([finding("ttft", "warm", verdict="fine"), wide])
    assert said == "Nothing fails; warm TTFT is enough to go on; heavy TTFT is left to a later step."


def test_marks_and_interval_are_in_order_on_the_axis():
    axis = ratio_axis(1.04, 0.97, 1.12, 0.10, 0.25)
    assert axis.worse is not None
    assert axis.fine is not None
    places = [float(x) for x in (axis.low, axis.same, axis.at, axis.worse.at, axis.high, axis.fine.at)]
    assert places == sorted(places)
    assert (axis.worse.anchor, axis.fine.anchor) == ("end", "start")
    assert axis.outside == axis.fine.at  # the limit of fine never lies in the red
    assert (axis.worse.label, axis.fine.label) == ("1.10×", "1.25×")
    assert places[0] > 0
    assert places[-1] < WIDTH


def test_an_interval_that_leaves_the_axis_is_cut_at_its_edge():
    axis = points_axis(0.2, -0.5, 0.9, 0.05)
    assert (axis.cut_low, axis.cut_high) == (True, True)
    assert 0 < float(axis.low) < float(axis.high) < WIDTH


def test_the_line_of_the_wall_describes_the_delivery():
    now = facts(State.STEP, step=2, share=0.25, clock_s=650)
    assert report.step_words(now) == "canary 25 %"
    assert report.figure([finding(verdict="fine", lower=-0.2), finding()]) == "heavy 1.04× (0.97–1.12×)"
    assert report.figure([finding("tpot", "warm")]) == "warm TPOT 1.04× (0.97–1.12×)"
    assert report.figure([finding("slow")]) == ""
    assert report.next_at(now) == NOW + 250


@pytest.mark.parametrize("state", [State.PAUSED, State.HOLDING, State.READY, State.ABORTED])
def test_a_stopped_clock_counts_nothing_down(state):
    assert report.next_at(facts(state, step=2)) is None


def test_the_whole_page_is_one_value():
    shown = reading.shown(facts(State.STEP, step=2, share=0.25, clock_s=650), [finding()])
    assert shown.bar == reading.ShareBar("25.0", "25 %", "75 %")
    assert (shown.next.in_text, shown.next.in_s, shown.progress) == ("4:10", 250, "Canary 25 %")
    assert shown.said.startswith("The delivery: running. v44 decides 25 %")
    assert [word for _, word in shown.steps] == ["done", "done", "now", "next", ""]


def test_one_word_summarizes_the_result_of_each_step():
    left = results.of_step(1, Trigger.PASS, datetime(2026, 8, 1, tzinfo=UTC), [finding(verdict="fine", upper=-0.1)])
    (row,) = reading.shown(facts(State.DELIVERED, step=4, results=results.read([left], plan()))).results
    assert (row.step, row.word, row.text) == ("Canary 5 %", "better", "one sentence")


@pytest.mark.parametrize("word", ["enough to go on", "no worse"])
def test_a_stored_result_that_is_certainly_worse_has_the_current_word(word):
    worse = finding(verdict="fine", lower=0.03, upper=0.2)
    new = results.of_step(1, Trigger.PASS, datetime(2026, 8, 1, tzinfo=UTC), [worse])
    stored = {**new, "shown": [{**new["shown"][0], "word": word}]}
    for each in (new, stored):
        (result,) = results.read([each], plan())
        assert [row.word for row in result.shown] == [results.UNSURE]


def test_in_a_switchback_no_session_stays_with_its_arm():
    assert "change sides" in reading.shown(facts(State.STEP, step=3, blocks=12)).sessions
    assert "stays with its arm" in reading.shown(facts(State.STEP, step=2)).sessions


def test_an_obstacle_to_a_delivery_is_a_notice():
    paused = reading.shown(facts(State.PAUSED, why="otto looks into it")).notice
    assert paused == "Paused: otto looks into it. Live serves every request while this stands still."
    assert reading.shown(facts(State.HOLDING, holds=("router-2 is behind",))).holds == ("router-2 is behind",)
    assert "asks whether to continue" in reading.shown(facts(State.WAITING)).notice
    assert reading.shown(facts(State.ABORTED, what="abort", by="otto")).why == "By otto: no reason was given"
    failed = facts(State.ABORTED, what="fail", by="judge", why="warm TTFT × 4")
    assert reading.shown(failed).why == "Stopped by guard: warm TTFT × 4"
    assert reading.shown(facts(State.BAKING, step=4)).bar == reading.ShareBar("100", "100 %", "0 %")
    assert reading.shown(facts(State.READY)).progress == "not started"
    assert reading.shown(facts(State.DELIVERED)).progress == "all 5 passed"


@pytest.mark.parametrize(
    ("metric", "more", "shown"),
    [
        ("shadow.changed", {"worse": None}, ("Changed decisions", "4 %", "1 % to 12 %", "")),
        ("arms", {"worse": 0.05}, ("Size of the candidate's share", "4 %", "1 % to 12 %", "")),
        ("pool.ttft_p90_ms", {"estimate": 812.0, "lower": None, "worse": 800.0},
         ("TTFT p90 of the pool", "812 ms", "", "fails above 800 ms")),
        ("pool.errors_share", {"lower": None, "worse": 0.05}, ("Errors of the pool", "4 %", "", "fails above 5 %")),
    ],
)  # fmt: skip
def test_levels_are_shown_in_their_unit(metric, more, shown):
    row = evidence.rows([finding(metric, "", **{"lower": 0.01, "needed": False, **more})])[0]
    assert (row.title, row.estimate, row.interval, row.limits) == shown


def test_failures_are_listed_first_and_checks_of_the_sums_last():
    found = [finding("arms", "", needed=False), finding("slow"), finding("tpot"), finding("errors", verdict="fail")]
    assert [row.title for row in evidence.rows(found)] == [
        "heavy errors",
        "heavy TPOT",
        "heavy slow requests",
        "Size of the candidate's share",
    ]


SLOW, TTFT = (
    over_time.ClassCharts("slow", "warm", "warm slow requests"),
    over_time.ClassCharts("ttft", "heavy", "heavy TTFT"),
)


def test_a_chart_has_both_arms_the_limit_the_interval_and_a_gap_where_a_step_has_no_level_yet():
    levels = (finding(candidate=520.0, control=500.0), finding("slow", "warm", candidate=0.12, control=0.1))
    looks = [over_time.SeenLook(NOW, 1, levels), over_time.SeenLook(NOW + 5, 2, (finding(verdict="no_data"),))]
    assert over_time.series(TTFT, looks) == {
        "candidate": [520.0, None],
        "control": [500.0, None],
        "limit": [pytest.approx(550.0), None],
        "lower": [pytest.approx(485.0), None],
        "upper": [pytest.approx(560.0), None],
        "n": [204, None],
        "few": [0, None],
        "difference": [pytest.approx(1.04), None],
        "from": [pytest.approx(0.97), None],
        "to": [pytest.approx(1.12), None],
        "worse": [pytest.approx(1.1), None],
        "enough": [pytest.approx(1.25), None],
    }
    slow = over_time.series(SLOW, looks)
    assert (slow["from"], slow["to"], slow["worse"]) == ([-3.0, None], [12.0, None], [10.0, None])
    assert over_time.series(SLOW, looks)["limit"] == [pytest.approx(20.0), None]
    assert over_time.series(SLOW, looks)["upper"] == [pytest.approx(22.0), None]


def test_a_look_with_too_few_requests_has_levels_that_are_marked_as_few():
    few = finding(verdict="no_data", estimate=None, lower=None, upper=None, candidate=900.0, control=500.0, n=(7, 90))
    shown = over_time.series(TTFT, [over_time.SeenLook(NOW, 1, (few,))])
    assert (shown["candidate"], shown["n"], shown["few"]) == ([900.0], [7], [1])
    assert (shown["lower"], shown["upper"]) == ([None], [None])


def test_the_assigned_share_and_the_share_of_requests_are_shown_once_per_class():
    several = (finding(n=(30, 70)), finding("tpot", n=(30, 70)), finding("ttft", "warm", n=(20, 180)))
    looks = [over_time.SeenLook(NOW, 1, several), over_time.SeenLook(NOW + 5, 9, ())]
    assert over_time.exposure(plan(), looks) == {
        "assigned": [5.0, None],
        "actual": [pytest.approx(100 / 6), None],
        "n": [50, 0],
    }


def test_each_class_of_a_comparison_has_a_chart():
    guards = [
        {"metric": "ttft", "classes": ["warm", "heavy"], "worse": 0.1, "fine": 0.25},
        {"metric": "errors", "ratio": 1.5},
    ]
    assert [chart.title for chart in over_time.charts(plan(guards=guards))] == ["warm TTFT", "heavy TTFT"]
