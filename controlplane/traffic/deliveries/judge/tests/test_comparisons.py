import math
import random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.traffic.deliveries.judge.statistics import comparisons
from controlplane.traffic.deliveries.judge.statistics.comparisons import (
    Estimate,
    adjusted,
    effective_cells,
    half_width,
    shares,
)
from controlplane.traffic.deliveries.judge.tests.traffic import evidence
from router.contract.redis.delivery import Moments

ALPHAS = st.floats(1e-5, 0.1)


def moments(rows: list[tuple[float, float]]) -> Moments:
    """Return the moments of (x, y) rows."""
    return Moments(
        len(rows),
        sum(y for _, y in rows),
        sum(y * y for _, y in rows),
        sum(x for x, _ in rows),
        sum(x * x for x, _ in rows),
        sum(x * y for x, y in rows),
    )


def ttft(seed: int = 1, name: str = "warm", **options: object) -> Estimate:
    found = evidence(seed=seed, **options).both(name)
    estimate = adjusted(*([cell.ttft for cell in cells] for cells in found))
    assert estimate is not None
    return estimate


@given(ALPHAS, st.floats(1, 1e7))
def test_an_interval_valid_at_any_time_is_never_narrower_than_one_for_a_fixed_time(alpha: float, n: float) -> None:
    assert half_width(1.0, n, alpha) > NormalDist().inv_cdf(1 - alpha)


@given(ALPHAS, st.floats(30, 1e6))
def test_less_risk_needs_a_wider_interval(alpha: float, n: float) -> None:
    assert half_width(1.0, n, alpha / 2) > half_width(1.0, n, alpha)


@given(st.floats(1e-4, 0.05))
def test_the_sequence_is_nearly_as_narrow_as_possible_where_it_is_tuned_for(alpha: float) -> None:
    """ρ² is an approximation of the optimum (Waudby-Smith and others 2024, appendix B.1)."""
    at, squared = comparisons.TUNED_FOR, comparisons.rho_squared(alpha)

    def width(rho: float) -> float:
        return math.sqrt(2 * (at * rho + 1) / (at * rho) * math.log1p(math.sqrt(at * rho + 1) / (2 * alpha)))

    assert width(squared) <= 1.02 * min(width(squared * 1.3**step) for step in range(-12, 13))


@pytest.mark.parametrize("se", [math.inf, math.nan])
def test_an_unknown_error_gives_no_interval(se: float) -> None:
    assert half_width(se, 100, 0.01) == math.inf


def test_no_requests_give_no_interval() -> None:
    assert half_width(0.1, 0, 0.01) == math.inf


def test_the_interval_covers_the_truth_at_every_time() -> None:
    """400 random walks without a difference, checked after every 20th request: the limit passes zero in at most 5 %."""
    draw, wrong = random.Random(3), 0
    for _ in range(400):
        total, squares = 0.0, 0.0
        for n in range(1, 601):
            one = draw.gauss(0, 1)
            total, squares = total + one, squares + one * one
            if n >= 30 and n % 20 == 0:
                se = math.sqrt((squares - total * total / n) / (n - 1) / n)
                if total / n - half_width(se, n, 0.05) > 0:
                    wrong += 1
                    break
    assert wrong <= 20


def test_a_difference_explained_by_prompt_lengths_is_zero() -> None:
    control = [[(x / 10, 2 * x / 10) for x in range(cell, cell + 20)] for cell in range(20)]
    candidate = [[(3 + x / 10, 6 + 2 * x / 10) for x in range(cell, cell + 20)] for cell in range(20)]
    found = adjusted([moments(each) for each in candidate], [moments(each) for each in control])
    assert found is not None
    assert found.difference == pytest.approx(0, abs=1e-9)


def test_prompts_of_one_length_have_no_slope() -> None:
    found = adjusted([moments([(5.0, 2.0), (5.0, 2.2)])] * 20, [moments([(5.0, 1.0), (5.0, 1.2)])] * 20)
    assert found is not None
    assert found.difference == pytest.approx(1.0)


@pytest.mark.parametrize("empty", [0, 1])
def test_an_empty_arm_is_not_compared(empty: int) -> None:
    arms = [[moments([(1.0, 1.0)])], [moments([(1.0, 1.0)])]]
    arms[empty] = []
    assert adjusted(*arms) is None
    assert shares(*([(each.n, each.n) for each in arm] for arm in arms)) is None


def test_one_cell_gives_no_standard_error() -> None:
    found = adjusted([moments([(1.0, 1.0), (2.0, 3.0)])], [moments([(1.0, 1.0), (2.0, 1.0)])] * 2)
    assert found is not None
    assert found.se == math.inf
    assert not found.is_enough


@given(st.integers(0, 50))
def test_swapping_candidate_and_control_only_changes_the_sign(seed: int) -> None:
    candidate, control = evidence(800, 0.5, seed=seed).both("warm")
    one = adjusted([each.ttft for each in candidate], [each.ttft for each in control])
    other = adjusted([each.ttft for each in control], [each.ttft for each in candidate])
    assert one is not None
    assert other is not None
    assert one.difference == pytest.approx(-other.difference)
    assert one.se == pytest.approx(other.se)
    assert one.upper(0.01) == pytest.approx(-other.lower(0.01))


def test_an_effect_is_found_within_its_interval() -> None:
    found = ttft(factors={"warm": 1.5})
    assert found.lower(0.001) < math.log(1.5) < found.upper(0.001)
    assert found.lower(0.001) > 0


def test_the_error_depends_on_sessions_not_requests() -> None:
    """Twenty turns of one session carry less information than twenty sessions."""
    few, many = (sum(ttft(seed, turns=turns).se for seed in range(8)) for turns in (20, 1))
    assert few > 1.3 * many


def spread(count: int, by: float) -> list[Moments]:
    """Return cells of two requests with the same length, whose levels lie alternately `by` above and below zero."""
    return [moments([(5.0, by * (-1) ** cell)] * 2) for cell in range(count)]


@pytest.mark.parametrize(
    ("count", "by", "counts"),
    [(10, 0.01, 1.0), (10, 3.0, 3.0), (16, 0.01, 0.01), (16, 3.0, 3.0)],
    ids=["few and quiet", "few and restless", "many and quiet", "many and restless"],
)
def test_few_cells_vary_at_least_as_much_as_those_of_the_other_arm(count: int, by: float, counts: float) -> None:
    """With sixteen or more cells, an arm shows its own variance."""
    found = adjusted(spread(count, by), spread(64, 1.0))
    assert found is not None
    variance = counts**2 / (count if counts == 1.0 else count - 1)
    assert found.se**2 == pytest.approx(variance + 1 / 63, rel=0.02)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=64))
def test_effective_cells_are_at_most_the_cells(counts: list[int]) -> None:
    assert 1 - 1e-9 <= effective_cells(counts) <= len(counts) + 1e-9


def test_equal_cells_count_in_full_and_an_empty_list_counts_as_zero() -> None:
    assert effective_cells([7] * 20) == pytest.approx(20)
    assert effective_cells([]) == 0


def test_shares_without_a_hit_still_have_an_error() -> None:
    found = shares([(0, 3)] * 20, [(0, 30)] * 20)
    assert found is not None
    assert found.difference == 0
    assert found.se > 0


def test_shares_are_compared_by_cell_where_hits_cluster() -> None:
    together = [(5, 5)] * 4 + [(0, 5)] * 36
    found = shares(together, [(0, 50)] * 40)
    spread = shares([(1, 5)] * 20 + [(0, 5)] * 20, [(0, 50)] * 40)
    assert found is not None
    assert spread is not None
    assert found.difference == spread.difference == pytest.approx(0.1)
    assert found.se > 1.5 * spread.se
