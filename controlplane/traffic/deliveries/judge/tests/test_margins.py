"""Intervals beside the limits of a guard, in the words that state the decision."""

import pytest

from controlplane.traffic.deliveries.judge.verdicts import Harm, harm, margin


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (-0.3, 0.36, Harm.UNKNOWN),
        (-0.3, 0.25, Harm.WITHIN),
        (0.05, 0.2, Harm.SLIGHT),
        (0.05, 0.36, Harm.WORSE),
        (0.26, 0.36, Harm.BEYOND),
        (None, None, Harm.UNKNOWN),
        (None, 0.1, Harm.WITHIN),
        (0.3, None, Harm.BEYOND),
    ],
)
def test_an_interval_may_lie_between_control_and_the_limit(lower, upper, expected):
    assert harm(lower, upper, 0.25) is expected


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (-0.29, 0.36, "surely less than 2.00× slower; 1.25× not excluded"),
        (-0.29, 0.20, "surely less than 1.25× slower"),
        (-0.40, -0.1, "surely faster than control"),
        (0.10, 0.36, "surely slower than control; surely less than 2.00× slower; 1.25× not excluded"),
        (-0.29, 1.5, "1.25× not excluded"),
        (0.40, 0.90, "surely slower than control; surely less than 2.00× slower"),
        (None, None, "1.25× not excluded"),
    ],
)
def test_the_margin_that_decided_is_reported_with_the_limit_that_is_not_excluded(lower, upper, expected):
    assert margin("ttft", lower, upper, 0.25, 1.0) == expected


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (0.0706, 0.703, "surely more than control; 10 points not excluded"),
        (-0.237, 0.277, "10 points not excluded"),
        (-0.05, 0.09, "surely less than 10 points more"),
        (-0.3, -0.01, "surely fewer than control"),
    ],
)
def test_shares_of_slow_requests_have_a_margin_in_points(lower, upper, expected):
    assert margin("slow", lower, upper, 0.10, None) == expected
