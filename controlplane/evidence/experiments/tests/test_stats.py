"""Statistics compared with values computed by hand."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.evidence.experiments.results.statistics import stats

numbers = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([1, 2, 3, 4], 0.5, 2.5), ([1, 2, 3, 4, 5], 0.9, 4.6), ([7], 0.99, 7), ([0, 10], 0.99, 9.9), ([3, 1, 2], 1.0, 3)],
)
def test_quantiles_are_linear_between_neighbours(values, share, expected):
    assert stats.quantile(sorted(values), share) == pytest.approx(expected)


@given(numbers)
def test_quantiles_rise_and_stay_within_the_values(values):
    p50, p90, p99 = stats.quantiles(values)
    assert min(values) <= p50 <= p90 <= p99 <= max(values)


def test_an_ecdf_climbs_to_one_at_the_largest_value():
    x, y = stats.ecdf([3, 1, 2, 4])
    assert (x, y) == ([1, 2, 3, 4], [0.25, 0.5, 0.75, 1.0])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=400))
def test_a_thinned_ecdf_keeps_its_ends(values):
    x, y = stats.ecdf(values, points=20)
    assert len(x) == len(y) <= 20
    assert (x[0], x[-1], y[-1]) == (min(values), max(values), 1.0)
    assert x == sorted(x)


def columns(n: int, shift: float, seed: int = 3) -> dict[str, list[float]]:
    draw = random.Random(seed)
    base = [draw.lognormvariate(5, 1) for _ in range(n)]
    return {"old": base, "new": [value + shift + draw.gauss(0, 5) for value in base]}


def test_a_real_difference_is_found_although_requests_differ_far_more():
    found = stats.differences(columns(300, -30))["new", "old"]
    assert [d.verdict for d in found[:2]] == ["better", "better"]
    assert found[0].low < -30 < found[0].high
    assert found[0].n == 300


def test_the_reverse_comparison_is_worse():
    assert stats.differences(columns(300, -30))["old", "new"][0].verdict == "worse"


def test_no_difference_is_not_distinguishable():
    assert {d.verdict for d in stats.differences(columns(300, 0))["new", "old"]} == {"not distinguishable"}


def test_equal_columns_differ_by_nothing():
    same = {"a": [1.0, 2.0] * 20, "b": [1.0, 2.0] * 20}
    assert all((d.difference, d.low, d.high) == (0, 0, 0) for d in stats.differences(same)["a", "b"])


def test_few_requests_get_no_verdict():
    assert {d.verdict for d in stats.differences(columns(19, -1000))["new", "old"]} == {"too few requests"}


def test_without_requests_there_are_no_differences():
    assert stats.differences({"a": [], "b": []}) == {}


def test_an_interval_covers_the_truth_about_as_often_as_its_level(monkeypatch):
    """The median of 60 paired differences with a known shift: of 60 intervals at 95 %, at least 85 % must cover it."""
    monkeypatch.setattr(stats, "RESAMPLES", 150)
    covered = 0
    for seed in range(60):
        draw = random.Random(seed)
        base = [draw.gauss(100, 10) for _ in range(60)]
        arm = [value - 5 + draw.gauss(0, 5) for value in base]
        found = stats.differences({"a": arm, "b": base}, seed)["a", "b"][0]
        covered += found.low <= -5 <= found.high
    assert covered >= 51


def test_the_same_seed_draws_the_same_intervals():
    data = columns(50, -3)
    assert stats.differences(data, 7) == stats.differences(data, 7)


def test_large_experiments_draw_fewer_resamples():
    assert stats.resamples_of(1_000) == 500
    assert stats.resamples_of(20_000) == 200
    assert stats.resamples_of(1_000_000) == 100


@given(numbers, st.randoms(use_true_random=False))
def test_a_resample_has_the_quantiles_of_the_values_that_were_drawn(values, draw):
    rows = Counter(draw.choices(range(len(values)), k=len(values)))
    ordered, order = stats._in_order(values)
    found = stats._resampled(ordered, [rows[row] for row in order])
    assert found == stats.quantiles([values[row] for row in rows.elements()])


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"), [(10, 100, 0.0552, 0.1744), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (0, 0, 0, 1)]
)
def test_the_interval_of_a_share_is_wilsons(hits, n, low, high):
    assert stats.wilson(hits, n) == pytest.approx((low, high), abs=1e-4)
