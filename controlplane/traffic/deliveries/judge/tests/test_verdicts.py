"""Every verdict, and golden looks: the judge's findings about constant traffic."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.judge.sums import Evidence
from controlplane.traffic.deliveries.judge.tests.traffic import evidence
from controlplane.traffic.deliveries.judge.verdicts import compare, deferred, judge, levels_of, problems
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.types import ComparisonGuard, Plan

GOLDEN = Path(__file__).with_name("golden_looks.json")
STEPS = [{"mode": "canary", "share": 0.1, "for_s": 600}, {"mode": "canary", "share": 0.25, "for_s": 600}]
CASES: dict[str, dict[str, Any]] = {
    "alike": {"requests": 12_000},
    "heavy ones twice as slow": {"factors": {"heavy": 2.0}},
    "warm ones a fifth faster": {"factors": {"warm": 0.8}, "requests": 12_000},
    "answers slower": {"tpot": 1.5},
    "more errors": {"errors": (0.08, 0.004)},
    "few requests": {"requests": 250},
    "no heavy ones": {"mix": (0.6, 0.395, 0.005)},
    "few heavy ones": {"mix": (0.55, 0.4, 0.05), "requests": 4_000},
    "more than its share": {"share": 0.3},
    "nothing": {"requests": 0},
}


def plan(**changes: Any) -> Plan:
    return parse_plan({"steps": STEPS, **changes}, pools=["demo"])


def found_in(case: str, **changes: Any) -> dict[str, GuardFinding]:
    """Return the findings of the first step."""
    of, given = evidence(**CASES[case]), plan(**changes)
    findings = deferred(judge(of, given, 0.1), of, given, 0, 0.1)
    return {f"{each.metric} {each.request_class}".strip(): each for each in findings}


@pytest.mark.parametrize("case", CASES)
def test_golden_looks(case: str) -> None:
    found = [replace(each, pool="demo").as_dict() for each in found_in(case).values()]
    golden = json.loads(GOLDEN.read_text())
    assert json.loads(json.dumps(found)) == golden[case]


def test_every_verdict_occurs_in_the_golden_looks() -> None:
    said = {each["verdict"] for look in json.loads(GOLDEN.read_text()).values() for each in look}
    assert said == {"fail", "fine", "inconclusive", "no_data", "error", "not_judged", "deferred"}


def test_a_candidate_that_is_certainly_worse_fails() -> None:
    found = found_in("heavy ones twice as slow")["ttft heavy"]
    assert found.verdict == "fail"
    assert found.lower is not None
    assert found.lower > 0.10
    assert found.text.startswith("heavy TTFT ")


def test_a_candidate_that_is_only_possibly_worse_does_not_fail() -> None:
    found = found_in("few requests")["ttft warm"]
    assert found.verdict == "no_data"
    assert found.text == "warm TTFT: 10 of 30 requests in the candidate's arm"


def test_requests_of_few_sessions_count_as_no_data() -> None:
    guard = ComparisonGuard("ttft", ("warm",), 0.1, 0.25)
    few = evidence(2_000, 0.5, turns=200)
    found = compare(few, guard, "warm", levels_of(plan()))
    assert found.verdict == "no_data"
    assert "of 8 effective cells in " in found.text


def test_a_rare_class_is_named_instead_of_judged() -> None:
    found = found_in("no heavy ones")["ttft heavy"]
    assert (found.verdict, found.text) == ("not_judged", "fewer than 1 % of the requests are heavy: not judged")


def test_arms_that_differ_from_their_intended_size_are_an_error() -> None:
    assert found_in("more than its share")["arms"].verdict == "error"
    assert found_in("alike")["arms"].verdict == "fine"
    assert found_in("few requests")["arms"].verdict == "no_data"
    assert found_in("nothing")["arms"].verdict == "no_data"


def test_more_errors_fail_by_count() -> None:
    found = found_in("more errors")["errors"]
    assert found.verdict == "fail"
    assert found.e_value is not None
    assert found.e_value > 1 / levels_of(plan()).fail


def test_refusals_are_counted_separately() -> None:
    assert found_in("more errors")["refused"].verdict == "inconclusive"


def test_failing_verdicts_share_alpha_and_each_passing_verdict_uses_all_of_it() -> None:
    """The plan has 9 comparisons and 2 canaries on one pool."""
    assert levels_of(plan()).fail == pytest.approx(0.01 / 18)
    assert levels_of(plan()).fine == 0.01
    assert levels_of(plan(alpha=0.05)).fine == 0.05


def test_a_plan_without_guards_also_has_levels() -> None:
    assert levels_of(replace(plan(), guards=(), steps=(), pools=())).fail == 0.01


def test_problems_of_the_sums_are_errors() -> None:
    (found,) = problems(Evidence(problems=("router r1 is late",)))
    assert (found.verdict, found.metric, found.text) == ("error", "tallies", "router r1 is late")


def test_levels_are_given_in_the_units_of_the_metric() -> None:
    found = found_in("heavy ones twice as slow")["ttft heavy"]
    assert found.control is not None
    assert 2_000 < found.control < 3_000
    assert found.candidate == pytest.approx(found.control * (1 + (found.estimate or 0)))
    slow = found_in("heavy ones twice as slow")["slow heavy"]
    assert slow.candidate == pytest.approx((slow.control or 0) + (slow.estimate or 0))


def test_an_infinite_number_is_stored_as_null() -> None:
    assert GuardFinding("ttft", "no_data", "", upper=float("inf")).as_dict()["upper"] is None
