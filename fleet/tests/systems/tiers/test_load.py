"""The generated load: its lengths, its turns and its repetition."""

import math
from collections import Counter
from statistics import NormalDist, fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.systems.tiers.load import LEVAL, LOOGLE, LOOGLE_LONG, TierLoad, gaps


def test_the_same_seed_asks_the_same_questions() -> None:
    assert LEVAL.asked(1, 500) == LEVAL.asked(1, 500) != LEVAL.asked(2, 500)
    assert gaps(1, 50) == gaps(1, 50) != gaps(2, 50)
    assert LEVAL.asked(1, 500) == LEVAL.asked(1, 900)[:500]


def test_each_subset_asks_once_per_round_and_keeps_to_its_lengths() -> None:
    asked = LEVAL.asked(3, 4_000)
    for start in range(0, 4_000, LEVAL.subsets):
        assert len({each.document % LEVAL.subsets for each in asked[start : start + LEVAL.subsets]}) == LEVAL.subsets
    for subset in range(LEVAL.subsets):
        lengths = [each.tokens for each in asked if each.document % LEVAL.subsets == subset]
        assert LEVAL.length(subset / LEVAL.subsets) <= min(lengths)
        assert max(lengths) <= LEVAL.length((subset + 1) / LEVAL.subsets)


def test_a_document_is_asked_about_as_often_as_the_load_says() -> None:
    counts = Counter(each.document for each in LOOGLE.asked(1, 6_000))
    assert max(counts.values()) == LOOGLE.questions
    open_ones = LOOGLE.subsets * LOOGLE.documents  # documents at the start and the end get fewer questions
    assert sum(count < LOOGLE.questions for count in counts.values()) <= 2 * open_ones


def test_the_mean_length_is_near_that_of_the_distribution() -> None:
    lengths = [each.tokens for each in LEVAL.asked(1, 20_000)]
    assert fmean(lengths) == pytest.approx(clipped_mean(LEVAL), rel=0.02)
    assert abs(fmean(gaps(1, 20_000)) - 1) < 0.03


def test_documents_above_100k_are_all_longer_than_that() -> None:
    lengths = [each.tokens for each in LOOGLE_LONG.asked(1, 1_000)]
    assert 100_000 <= min(lengths) < max(lengths) <= 200_000


def clipped_mean(load: TierLoad) -> float:
    """Return the mean of a log-normal distribution truncated at its limits."""
    middle = math.log(load.mean_tokens) - load.sigma**2 / 2
    low, high = ((math.log(edge) - middle) / load.sigma for edge in (load.shortest, load.longest))
    between = [NormalDist(shift).cdf(high) - NormalDist(shift).cdf(low) for shift in (0, load.sigma)]
    return load.mean_tokens * between[1] / between[0]


@settings(max_examples=50)
@given(st.floats(0, 1), st.floats(100, 1e6), st.floats(0.01, 3), st.integers(1, 10_000), st.integers(0, 10**6))
def test_lengths_stay_between_their_limits(quantile: float, mean: float, sigma: float, low: int, more: int) -> None:
    load = TierLoad(mean_tokens=mean, sigma=sigma, shortest=low, longest=low + more)
    assert low <= load.length(quantile) <= low + more
