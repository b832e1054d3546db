"""Request classes in the order in which they are tested: heavy, warm, medium."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.policy.rules.classify import classify
from router.policy.schema import document
from router.policy.types import CLASSES

POLICY = document.parse(document.default())


@pytest.mark.parametrize(
    ("prompt", "cached", "expected"),
    [
        (200_000, 120_000, "heavy"),  # 60 % hit but 80k new tokens: heavy, not warm
        (40_000, 0, "heavy"),
        (39_999, 0, "medium"),
        (5_000, 0, "medium"),
        (4_999, 0, "warm"),
        (10_000, 5_000, "medium"),  # h/L = 0.5 is not above 0.5, n = 5000 is not below 5000
        (10_000, 5_001, "warm"),
        (30_000, 15_001, "warm"),
        (0, 0, "warm"),
        (100, 5_000, "warm"),  # an index that claims more tokens than the prompt has
    ],
)
def test_the_class_follows_the_thresholds(prompt: int, cached: int, expected: str) -> None:
    assert classify(prompt, cached, POLICY) == expected


def test_with_a_hit_share_of_one_no_hit_makes_a_request_warm() -> None:
    policy = document.parse({"classes": {"warm_hit_share": 1, "warm_new_tokens": 0}})
    assert classify(10_000, 10_000, policy) == "medium"


@given(st.integers(0, 2_000_000), st.integers(0, 2_000_000))
def test_every_request_has_one_class_named_by_the_rules(prompt: int, cached: int) -> None:
    new = max(prompt - cached, 0)
    request_class = classify(prompt, cached, POLICY)
    assert request_class in CLASSES
    assert (request_class == "heavy") == (new >= 40_000)
    if request_class == "medium":
        assert 5_000 <= new < 40_000
        assert cached <= prompt / 2


@given(st.integers(0, 1_000_000), st.integers(0, 1_000_000), st.integers(256, 999_999))
def test_a_higher_threshold_never_makes_a_request_heavier(prompt: int, cached: int, threshold: int) -> None:
    overrides = {"warm_new_tokens": 255}
    lower = document.parse({"classes": {"heavy_new_tokens": threshold, **overrides}})
    higher = document.parse({"classes": {"heavy_new_tokens": threshold + 1, **overrides}})
    if classify(prompt, cached, higher) == "heavy":
        assert classify(prompt, cached, lower) == "heavy"
