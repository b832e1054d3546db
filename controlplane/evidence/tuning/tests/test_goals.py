"""The score of a point, the undominated points, the points that are checked, and their effects."""

import math

import pytest
from msgspec.structs import replace

from controlplane.evidence.tuning import display, goals
from controlplane.evidence.tuning.goals import Goals, GoodputLimits
from controlplane.evidence.twin.simulation.types import Simulated

ONE = Simulated(0, 1, "", 0.0, 100, 10, 0, 0.1, 0.01, 0.2, "a", "warm", "ok", "", 0.0, False)
REFUSED = replace(ONE, outcome="refused", ttft_s=None, tpot_s=None, instance="")
LIMITS = GoodputLimits(200.0, 20.0)


def answers(*ttft_s, **changes):
    return [replace(ONE, index=i, ttft_s=ttft, **changes) for i, ttft in enumerate(ttft_s)]


def test_refused_requests_count_against_a_point():
    quick, refusing = [ONE] * 40, [ONE] * 30 + [REFUSED] * 10
    assert goals.goals_of(quick, LIMITS) == Goals(40, 40, 100.0, 10.0, 1.0)
    assert goals.goals_of(refusing, LIMITS) == Goals(40, 30, None, 10.0, 0.75)
    assert goals.goals_of(refusing, LIMITS).ordered[0] == math.inf
    assert goals.goals_of([REFUSED], LIMITS).tpot_p90_ms is None


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"ttft_s": 0.3}, False),
        ({"tpot_s": 0.03}, False),
        ({"tpot_s": None}, True),
        ({"outcome": "error"}, False),
    ],
)
def test_goodput_counts_answers_within_both_limits(changes, good):
    assert goals.is_good(replace(ONE, **changes), LIMITS) is good


def test_the_limits_are_the_given_ones_or_else_the_live_versions_p90():
    live = answers(*(i / 1000 for i in range(1, 102)))
    assert goals.limits_of(live, None, None) == GoodputLimits(91.0, 10.0)
    assert goals.limits_of(live, 50.0, 5.0) == GoodputLimits(50.0, 5.0)
    assert goals.limits_of([REFUSED], None, None) == GoodputLimits(math.inf, math.inf)


def of(ttft, tpot, goodput):
    return Goals(100, 100, ttft, tpot, goodput)


POINTS = {1: of(100.0, 30.0, 0.9), 2: of(300.0, 10.0, 0.8), 3: of(301.0, 11.0, 0.7), 4: of(150.0, 15.0, 0.85),
          5: of(None, 20.0, 0.99), 6: of(400.0, 40.0, 0.1)}  # fmt: skip


def test_the_front_holds_the_undominated_trials():
    assert goals.front(POINTS) == [1, 2, 4, 5]
    assert goals.front({}) == []


def test_winners_are_the_best_in_a_goal_or_the_best_compromise():
    assert goals.winners(POINTS) == {1: ["ttft"], 2: ["tpot"], 5: ["goodput"], 4: ["balanced"]}
    assert goals.winners({7: of(1.0, 1.0, 1.0)}) == {7: ["ttft", "tpot", "goodput", "balanced"]}
    assert goals.winners({}) == {}
    assert goals.winners(POINTS, ("ttft", "tpot")) == {1: ["ttft"], 2: ["tpot"], 4: ["balanced"]}
    assert goals.winners(POINTS, ("goodput",)) == {5: ["goodput"]}
    assert goals.front(POINTS, ("goodput",)) == [5]


def test_effects_have_intervals_and_verdicts_in_the_direction_of_the_goal():
    live = answers(*(0.15 + 0.001 * i for i in range(60)))
    better, same = answers(*(0.05 + 0.001 * i for i in range(60))), live
    found = goals.effects(live, {3: better, 8: same}, GoodputLimits(180.0, 20.0))
    ttft, tpot, goodput = found[3]
    assert (ttft["metric"], ttft["verdict"], ttft["n"]) == ("ttft_p90_ms", "better", 60)
    assert ttft["difference"] == pytest.approx(-100.0)
    assert ttft["low"] <= ttft["difference"] <= ttft["high"] < 0
    assert tpot["verdict"] == "not distinguishable"
    assert (goodput["tuned"], goodput["verdict"]) == (1.0, "better")
    assert goodput["low"] > 0
    assert [row["verdict"] for row in found[8]] == ["not distinguishable"] * 3
    worse = goals.effects(live, {1: answers(*[0.5] * 50) + [REFUSED] * 10}, LIMITS)[1]
    assert (worse[0]["tuned"], worse[0]["difference"], worse[0]["verdict"]) == (None, None, "worse")
    assert (worse[1]["n"], worse[2]["verdict"]) == (50, "worse")
    infinite = goals.effects(live, {1: [*live[:20], *[REFUSED] * 40]}, LIMITS)[1][0]
    said = "TTFT p90: 203 ms → –, falls on unanswered requests (95 % interval ∞ to ∞, n = 60): worse"
    assert display.effect_text(display.effect(infinite)) == said
    nothing = goals.effects([REFUSED], {1: [REFUSED]}, LIMITS)[1][1]
    assert display.effect_text(display.effect(nothing)) == "TPOT p90: – → –: too few requests, no interval"
