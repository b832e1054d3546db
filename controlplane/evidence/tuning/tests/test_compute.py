"""The search and the check of its winners on a small trace."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from controlplane.evidence.previews.analysis.compute import from_the_start
from controlplane.evidence.previews.tests.test_computing_process import LAW
from controlplane.evidence.traces.generated import generate
from controlplane.evidence.tuning import compute
from controlplane.evidence.tuning.compute import TRIES, TuningInputs
from controlplane.evidence.tuning.goals import OBJECTIVES, Goals
from controlplane.evidence.tuning.search import EvenSearch, OptunaSearch, search_of
from controlplane.evidence.tuning.space import Range, space_of
from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.engine.engine_model import EngineModel, LoadRange
from fleet.engine.scheduler import Limits
from router.policy.schema import document as documents

REQUESTS = generate(duration_s=100).requests
CUT = round(0.7 * len(REQUESTS))
GOALS = Goals(100, 100, 500.0, None, 0.5)
SPACE = space_of("adaptive_v1", [Range("classes.heavy_new_tokens", 8_000, 60_000), Range("strategy.order")])


def job(**changes):
    fleet = TwinFleet(dict.fromkeys(("a", "b"), EngineModel(LAW, 200_000, Limits())))
    search, check = REQUESTS[:CUT], from_the_start(REQUESTS[CUT:])
    values = {"space": SPACE, "search": search, "check": check, "pacing": "closed_loop", "seed": 1, "trials": 3}
    return TuningInputs(
        **{"fleet": fleet, "document": documents.default("adaptive_v1"), "workers": 1, **values, **changes}
    )


def computed(**changes):
    tried = []
    return compute.compute(job(**changes), tried.append), tried


def test_winners_of_the_searched_part_are_checked_on_the_part_that_was_held_out():
    tuned, tried = computed()
    assert [each.number for each in tried] == [1, 2, 3]
    assert {each.goals.n for each in tried} == {CUT}
    live, winners = tuned.result["live"], tuned.result["winners"]
    assert (live["search"]["n"], live["check"]["n"]) == (CUT, len(REQUESTS) - CUT)
    assert {winner["trial"] for winner in winners} <= set(tuned.result["front"])
    for winner in winners:
        assert winner["check"]["n"] == tuned.by_class["all"] == len(REQUESTS) - CUT
        assert winner["values"] == tried[winner["trial"] - 1].values
        assert [row["metric"] for row in winner["effect"]] == ["ttft_p90_ms", "tpot_p90_ms", "goodput"]


def test_equal_seeds_give_equal_trials():
    assert computed() == computed()


def test_stored_trials_are_not_simulated_again_and_lead_to_the_same_result(monkeypatch):
    whole, tried = computed()
    played = []
    simulate = compute.simulate
    monkeypatch.setattr(compute, "simulate", lambda *given, **how: played.append(given) or simulate(*given, **how))
    other = replace(tried[1], values={**tried[1].values, "classes.heavy_new_tokens": 1})
    found, new = computed(kept=(tried[0], other))  # the second was drawn by another search
    assert (found, [each.number for each in new]) == (whole, [2, 3])
    assert len(played) == 1 + 2 + 1 + len(whole.result["winners"])  # live, trials, check


def test_points_that_give_an_invalid_document_are_not_simulated_and_are_limited_in_number():
    space = space_of("adaptive_v1", [Range("classes.warm_new_tokens", 900_000, 999_999)])
    asked = []

    class Counting(EvenSearch):
        def ask(self):
            asked.append(1)
            return super().ask()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compute, "search_of", lambda space, seed, trials, objectives: Counting(space, seed))
        tuned, tried = computed(space=space)
    assert (tried, tuned.result["winners"], tuned.result["front"]) == ([], [], [])
    assert len(asked) == 3 * TRIES


def test_the_time_limit_ends_the_search_and_its_best_points_are_checked(monkeypatch):
    clock = iter((0.0, 6.0))
    monkeypatch.setattr(compute, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    tuned, tried = computed(time_limit_s=5.0)
    assert [each.number for each in tried] == [1]
    assert [winner["trial"] for winner in tuned.result["winners"]] == [1]


def test_with_one_objective_there_is_one_winner_and_no_compromise():
    tuned, tried = computed(objectives=("goodput",))
    (winner,) = tuned.result["winners"]
    assert winner["reasons"] == ["goodput"]
    assert winner["search"]["goodput"] == max(each.goals.goodput for each in tried)


def test_the_progress_callback_can_stop_a_tuning():
    def stop(_):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        compute.compute(job(), stop)


def test_without_optuna_points_are_spread_evenly_and_shifted_by_the_seed():
    def drawn(seed):
        made = search_of(SPACE, seed, 40, OBJECTIVES)
        assert isinstance(made, EvenSearch)
        made.begin({}, GOALS)
        found = []
        for _ in range(40):
            point = made.ask()
            made.tell(point, None)
            found.append(point.values)
        return found

    first = drawn(1)
    assert first == drawn(1) != drawn(2)
    tenths = {int((each["classes.heavy_new_tokens"] - 8_000) / 5_200.1) for each in first}
    assert tenths == set(range(10))
    assert {each["strategy.order"] for each in first} == set(SPACE[1].choices)


def test_optuna_draws_within_the_bounds_and_repeats_with_the_same_seed():
    def drawn():
        made = OptunaSearch(SPACE, 1, 8)
        made.begin(documents.values_of(documents.default("adaptive_v1")), GOALS)
        found = []
        for i in range(8):
            point = made.ask()
            made.tell(point, GOALS if i % 2 else None)
            found.append(point.values)
        return found

    first = drawn()
    assert first == drawn()
    assert all(8_000 <= each["classes.heavy_new_tokens"] <= 60_000 for each in first)
    assert len({each["classes.heavy_new_tokens"] for each in first}) > 4
    assert {each["strategy.order"] for each in first} <= set(SPACE[1].choices)
    outside = OptunaSearch(space_of("adaptive_v1", [Range("load.request_tokens", 5_000)]), 1, 3)
    outside.begin(documents.values_of(documents.default("adaptive_v1")), Goals(1, 1, 1.0, 1.0, 1.0))
    assert outside.ask().values["load.request_tokens"] >= 5_000
    alone = OptunaSearch(SPACE, 1, 3, ("goodput",))
    alone.begin(documents.values_of(documents.default("adaptive_v1")), Goals(1, 0, None, None, 0.0))
    point = alone.ask()
    alone.tell(point, Goals(1, 1, None, None, 1.0))
    assert alone.ask().values != point.values


def test_a_load_outside_the_calibration_is_listed_among_what_is_not_modelled():
    narrow = EngineModel(LAW, 200_000, Limits(), calibrated=LoadRange((1, 500), (1, 20)))
    tuned = compute.compute(job(fleet=TwinFleet(dict.fromkeys(("a", "b"), narrow))), lambda _: None)
    assert [text for text in tuned.not_modelled if "new tokens in a prompt; the calibration did not" in text]
