"""Warnings about a simulation's figures."""

from controlplane.evidence.experiments.record import RunFacts, TwinFacts
from controlplane.evidence.experiments.results import summarize
from controlplane.evidence.experiments.results.validity import merged, seeds_alike, twin_warnings
from controlplane.evidence.experiments.tests.conftest import record


def warnings(facts, *found):
    return twin_warnings(summarize.run_results(found, []), RunFacts(**facts))


def test_effects_that_the_twin_leaves_out_are_listed():
    facts = {"twin": TwinFacts("profile", "", ["roles are not modelled"]), "not_modelled": ["offloads"]}
    said = ["the twin: roles are not modelled", "not simulated: offloads"]
    assert warnings(facts, record(1)) == said
    assert warnings({**facts, "outside": ["longer prompts"]}, record(1)) == [*said, "the twin: longer prompts"]


def test_the_load_of_the_machine_is_not_mentioned():
    assert warnings({"machine_busy": 1.0, "sim_lag_p99_s": 9.0}, record(1, late_wall_ms=9e9)) == []


def test_in_the_twin_too_a_policy_that_refuses_does_not_look_fast():
    found = [record(i) for i in range(9)] + [record(9, outcome="refused", ttft_ms=None)]
    (said,) = warnings({}, *found)
    assert said.startswith("1 of 10 requests were refused or failed")


def test_requests_that_fail_by_themselves_are_reported():
    found = [record(i) for i in range(400)] + [record(400, outcome="client_error", ttft_ms=None)]
    (said,) = warnings({}, *found)
    assert said.startswith("1 of 401 requests were at fault themselves, most likely longer than an engine's context")


def test_seeds_that_gave_the_same_requests_do_not_count_as_more_requests():
    assert seeds_alike({1: "a", 2: "b"}) == []
    assert "several seeds played the same requests" in seeds_alike({1: "a", 2: "a", 3: "b"})[0]


def test_warnings_common_to_all_arms_are_shown_once():
    assert merged({"x": ["late", "odd"], "y": ["odd"]}) == ["odd", "x: late"]
    assert merged({"x": [], "y": ["odd"]}) == ["y: odd"]
