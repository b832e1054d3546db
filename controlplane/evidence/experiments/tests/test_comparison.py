"""Paired comparisons: a request without an answer counts against its arm."""

import dataclasses
import math

import pytest

from controlplane.evidence.experiments.results import records, summarize
from controlplane.evidence.experiments.results.metrics import MAIN
from controlplane.evidence.experiments.results.statistics import comparison, pairs
from controlplane.evidence.experiments.tests.conftest import record

no_beat = lambda: None  # noqa: E731
LIMITS = {"all": {"ttft_ms": 150.0}}


def keyed(*records):
    return {(1, one.index): one for one in records}


def refused(index):
    return record(index, outcome="refused", ttft_ms=None, tpot_ms=None, e2e_ms=5.0)


def rows_of(arms, **limits):
    return {
        (row["arm"], row["class"], row["metric"]): row
        for row in comparison.differences(arms, limits, no_beat)
        if row["baseline"] == "base"
    }


def test_pairs_are_requests_sent_to_every_arm_and_unanswered_ones_count_as_infinitely_late():
    one = keyed(*(record(i) for i in range(5)))
    other = keyed(record(0, ttft_ms=1.0), refused(1), record(2, ttft_ms=None), record(3, outcome="cancelled"))
    found, sessions = pairs.latency_columns({"a": one, "b": other}, "all", "ttft")
    assert found == {"a": [100.0, 101.0], "b": [1.0, math.inf]}
    assert sessions == [(1, "s0"), (1, "s1")]


def test_an_arm_that_refuses_slow_requests_is_not_better_and_its_quantile_is_infinite():
    base = keyed(*(record(i, ttft_ms=100.0 + i) for i in range(100)))
    refuser = keyed(*(record(i, ttft_ms=100.0 + i) if i < 80 else refused(i) for i in range(100)))
    rows = rows_of({"base": base, "refuser": refuser})
    assert rows["refuser", "all", "ttft_p50_ms"]["verdict"] == "not distinguishable"
    worse = rows["refuser", "all", "ttft_p90_ms"]
    assert (worse["verdict"], worse["difference"], worse["high"]) == ("worse", None, None)
    assert rows["refuser", "all", "refused"]["verdict"] == "worse"
    assert rows["refuser", "all", "refused"]["difference"] == 20


def difference(metric, difference=4.0, low=0.2, high=8.7, **changes):
    """A difference from zero that is significant alone, but not together with other metrics."""
    bounds = {"difference": difference, "low": low, "high": high, "relative": 0.02}
    kept = {"arm": "new", "baseline": "old", "class": "all", "metric": metric, "n": 50, "reference": 200.0}
    return {**kept, **bounds, "relative_low": 0.001, "relative_high": 0.044, "verdict": "worse"} | changes


def test_marks_are_valid_jointly_for_the_main_metrics_of_an_arm_and_jointly_for_all_others():
    def verdicts(*rows):
        return [row["verdict"] for row in comparison.jointly(rows)]

    assert verdicts(difference("tpot_p50_ms")) == ["worse"]
    six = [difference(metric) for metric in MAIN[:6]]
    assert verdicts(*six, difference("tpot_p99_ms")) == ["not distinguishable"] * 6 + ["worse"]
    others = [difference(metric, arm="b") for metric in MAIN[:1]] + [difference("ttft_p99_ms", arm="b")]
    assert verdicts(*others) == ["worse", "worse"]
    sure = difference(MAIN[0], 20.0, 16.0, 24.0, relative=0.1, relative_low=0.08, relative_high=0.12)
    assert verdicts(sure, *six[1:]) == ["worse"] + ["not distinguishable"] * 5
    unanswered = difference(MAIN[0], None, 1.0, None)
    assert verdicts(unanswered, *six[1:])[0] == "worse"


@pytest.mark.parametrize(
    ("ends", "widened"),
    [
        (
            {"high": None, "relative_high": None},
            {"low": -1.216, "high": None, "relative_low": -0.006, "relative_high": None},
        ),
        (
            {"difference": -4.0, "low": None, "high": -0.2, "relative": -1.0, "relative_low": -1.0},
            {"low": None, "high": 1.216},
        ),
        (
            {"relative": -0.02, "relative_low": -1.0, "relative_high": -0.001},
            {"relative_low": -1.0, "relative_high": 0.006},
        ),
    ],
)
def test_the_finite_end_of_a_half_open_interval_is_valid_jointly_with_other_metrics(ends, widened):
    rows = [difference(metric, **ends) for metric in MAIN]
    assert {row["verdict"] for row in comparison.jointly(rows[:1])} == {"worse"}
    for row in comparison.jointly(rows):
        assert row["verdict"] == "not distinguishable"
        assert {name: row[name] for name in widened} == pytest.approx(widened, abs=0.001)


def test_the_best_is_better_than_each_other_arm_and_ties_are_named():
    fast, alike, slow = (
        keyed(*(record(i, ttft_ms=ttft + (i * 7 + shift) % 13) for i in range(60)))
        for ttft, shift in ((100.0, 0), (100.0, 5), (140.0, 0))
    )
    arms = [{"name": name} for name in ("fast", "alike", "slow")]
    best, tied = comparison.best(
        arms, comparison.differences({"fast": fast, "alike": alike, "slow": slow}, {}, no_beat)
    )
    assert "ttft_p50_ms" not in best["all"]
    assert tied["all"]["ttft_p50_ms"] == ["fast", "alike"]
    best, tied = comparison.best(arms[1:], comparison.differences({"alike": alike, "slow": slow}, {}, no_beat))
    assert (best["all"]["ttft_p50_ms"], tied["all"]["ttft_p50_ms"]) == ("alike", ["alike"])
    assert best["heavy"] == {}


@pytest.mark.parametrize(
    ("found", "within"),
    [
        (record(0, ttft_ms=150.0), True),
        (record(0, ttft_ms=151.0), False),
        (record(0, ttft_ms=10.0, outcome="error"), False),
        (record(0, ttft_ms=151.0, trace_class="heavy"), True),
        (record(0, ttft_ms=1.0, tpot_ms=None), True),
    ],
)
def test_an_answer_is_within_the_limits_of_its_class(found, within):
    limits = {"all": {"ttft_ms": 150.0, "tpot_ms": 9.0}, "heavy": {"ttft_ms": 900.0}}
    assert records.is_within(found, limits) is within
    assert not records.is_within(found, {})


def test_goodput_counts_answers_within_the_slo_per_second_of_the_runs():
    found = [record(i, ttft_ms=100.0 if i % 2 else 200.0, sent_s=float(i), e2e_ms=1000.0) for i in range(9)]
    results = summarize.class_results([*found, refused(9)], LIMITS, 10.0)
    assert (results["within_slo"], results["goodput"]) == (0.4, 0.4)
    assert summarize.class_results(found)["goodput"] is None
    assert records.seconds(found) == 9.0


def test_differences_of_shares_have_intervals_and_higher_is_better():
    base = keyed(*(record(i, ttft_ms=200.0, cached_tokens=100) for i in range(50)))
    good = keyed(*(record(i, ttft_ms=100.0 if i % 5 else 200.0, cached_tokens=900) for i in range(50)))
    rows = rows_of({"base": base, "good": good}, **LIMITS)
    share = rows["good", "all", "within_slo"]
    assert (share["difference"], share["verdict"], share["n"]) == (0.8, "better", 50)
    assert share["low"] < 0.8 < share["high"]
    assert rows["good", "all", "hit_ratio"]["verdict"] == "better"
    assert rows["good", "all", "goodput"]["verdict"] == "better"
    assert "within_slo" not in {metric for _, _, metric in rows_of({"base": base, "good": good})}


def test_a_hit_ratio_that_may_include_transferred_tokens_makes_no_arm_the_best():
    base, good = (keyed(*(record(i, cached_tokens=cached) for i in range(50))) for cached in (100, 900))
    rows = comparison.differences({"base": base, "good": good}, LIMITS, no_beat)
    winners, tied = comparison.best([{"name": name} for name in ("base", "good")], rows)
    assert any(row["metric"] == "hit_ratio" and row["verdict"] == "better" for row in rows)
    assert not any("hit_ratio" in found for marks in (winners, tied) for found in marks.values())
    assert tied["all"]["ttft_p90_ms"] == ["base", "good"]


def test_a_single_arm_is_not_compared():
    assert comparison.differences({"a": keyed(record(0)), "b": {}}, {}, no_beat) == []


def test_a_request_not_sent_to_an_arm_is_in_no_level_and_counted_as_left_out():
    """The arm was cancelled before the slow half: with it, the baseline would look slow and full of errors."""
    base = keyed(
        *(record(i, ttft_ms=100.0 if i < 40 else 900.0, outcome="ok" if i < 40 else "error") for i in range(80))
    )
    arm = keyed(
        *(record(i, ttft_ms=110.0) for i in range(40)), *(record(i, outcome="cancelled") for i in range(40, 80))
    )
    rows = rows_of({"base": base, "arm": arm})
    for metric, level, difference in (("ttft_p90_ms", 100.0, 10.0), ("errors", 0.0, 0.0)):
        row = rows["arm", "all", metric]
        assert (row["reference"], row["difference"], row["n"], row["left_out"]) == (level, difference, 40, 40)


def test_the_interval_of_a_ratio_comes_from_its_logarithm_and_never_falls_below_minus_100_percent():
    base = keyed(*(record(i, cached_tokens=900 if i % 20 == 0 else 0) for i in range(60)))
    arm = keyed(*(record(i, cached_tokens=400 if i % 20 == 10 else 0) for i in range(60)))
    row = rows_of({"base": base, "arm": arm})["arm", "all", "hit_ratio"]
    assert row["low"] < -row["reference"]
    assert -1 < row["relative_low"] < row["relative"] < row["relative_high"]
    assert (1 + row["relative_low"]) * (1 + row["relative_high"]) == pytest.approx((1 + row["relative"]) ** 2, rel=0.01)


def in_sessions(gain_of, sessions=10, turns=20):
    """Arms whose requests differ only by session; `gain_of` returns a session's gain in ms."""
    each = [(i, i // turns) for i in range(sessions * turns)]
    base = keyed(*(record(i, ttft_ms=100.0, session=f"s{number}") for i, number in each))
    arm = keyed(*(record(i, ttft_ms=100.0 - gain_of(number), session=f"s{number}") for i, number in each))
    return base, arm


def test_requests_of_one_session_do_not_count_as_independent():
    """Six of ten sessions gain: 120 of 200 requests would be significant, six sessions are not."""
    base, arm = in_sessions(lambda number: 60.0 if number < 6 else -60.0)
    rows = rows_of({"base": base, "arm": arm}, all={"ttft_ms": 90.0})
    assert rows["arm", "all", "ttft_p50_ms"]["verdict"] == "not distinguishable"
    share = rows["arm", "all", "within_slo"]
    assert (share["verdict"], share["difference"], share["n"]) == ("better", 0.6, 200)
    alone = {
        name: {key: dataclasses.replace(one, session="") for key, one in of.items()}
        for name, of in (("base", base), ("arm", arm))
    }
    one_by_one = rows_of(alone, all={"ttft_ms": 90.0})["arm", "all", "within_slo"]
    assert share["high"] - share["low"] > 3 * (one_by_one["high"] - one_by_one["low"])


@pytest.mark.parametrize(("sessions", "verdict"), [(4, "too few requests"), (5, "better")])
def test_few_sessions_decide_nothing(sessions, verdict):
    base, arm = in_sessions(lambda number: 60.0, sessions)
    rows = rows_of({"base": base, "arm": arm})
    assert rows["arm", "all", "ttft_p50_ms"]["verdict"] == verdict
