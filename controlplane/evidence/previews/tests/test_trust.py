"""Reasons to doubt a preview, in sentences that name the problem and the remedy."""

import pytest

from controlplane.evidence.previews.analysis import trust

ENOUGH = {"all": 200, "warm": 160, "medium": 20, "heavy": 20}


def codes(cautions):
    return [one["code"] for one in cautions]


def test_enough_recent_requests_of_the_pool_need_no_caution():
    assert trust.of_age("recorded:demo", trust.OLD_S) == []
    assert trust.of_requests(ENOUGH) == []
    assert trust.of_origin("recorded:demo", "demo", "m", pools=["demo"], models=["m"]) == []
    assert trust.of_deviation({"relative": -0.15, "n": 30}) == []
    assert trust.of_versions(()) == []


@pytest.mark.parametrize(("age_s", "told"), [(25 * 3600, "25 hours"), (4.5 * 86_400, "4.5 days")])
def test_an_old_trace_is_reported_with_its_age(age_s, told):
    (found,) = trust.of_age("recorded:demo", age_s)
    assert found["code"] == "trace_old"
    assert f"is {told} old" in found["text"]


def test_few_requests_in_all_are_reported():
    (found,) = trust.of_requests({**ENOUGH, "all": 199})
    assert "199 requests were compared, fewer than 200" in found["text"]


@pytest.mark.parametrize(("count", "told"), [(19, "19 heavy requests were"), (1, "1 heavy request was")])
def test_a_class_with_few_requests_is_reported(count, told):
    (found,) = trust.of_requests({**ENOUGH, "heavy": count})
    assert found["code"] == "few_of_class"
    assert found["text"].startswith(f"{told} compared, fewer than 20")


def test_a_class_without_requests_is_reported():
    (found,) = trust.of_requests({"all": 400, "warm": 200, "medium": 200})
    assert found["text"].startswith("0 heavy requests were")


@pytest.mark.parametrize(
    ("pools", "models", "code", "told"),
    [
        ((), (), "not_recorded", "agentic is not traffic of pool demo"),
        (("demo", "b"), ("m", "n"), "other_model", "recorded with m, n; pool demo runs m"),
        (("b", "b"), ("m",), "other_pool", "recorded from pool b, not from demo"),
    ],
)
def test_traffic_from_elsewhere_is_reported(pools, models, code, told):
    (found,) = trust.of_origin("agentic", "demo", "m", pools=pools, models=models)
    assert found["code"] == code
    assert told in found["text"]


@pytest.mark.parametrize(("relative", "told"), [(0.16, "16 % above"), (-0.4, "40 % below")])
def test_a_deviating_twin_is_reported(relative, told):
    (found,) = trust.of_deviation({"relative": relative, "n": 1240})
    assert found["code"] == "twin_off"
    assert told in found["text"]
    assert "n = 1,240" in found["text"]


def test_a_deviation_within_the_expected_error_raises_no_doubt():
    assert trust.of_deviation({"relative": 0.19, "n": 30}, 0.2) == []
    (found,) = trust.of_deviation({"relative": 0.21, "n": 30}, 0.2)
    assert "more than 20 %" in found["text"]
    assert trust.of_deviation({"relative": 0.16, "n": 30}, 0.03) != []
    assert trust.of_deviation({"relative": 0.14, "n": 30}, 0.03) == []


def test_measurements_under_several_versions_are_reported():
    (found,) = trust.of_versions([("default", 3), ("", 0), ("default", 2)])
    assert "(an unnamed version, default v2, default v3)" in found["text"]
