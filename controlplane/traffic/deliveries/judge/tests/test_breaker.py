import pytest

from controlplane.traffic.deliveries.judge.memory import EndedCounts
from controlplane.traffic.deliveries.judge.pool_guards import (
    after_promotion,
    at_promotion,
    breaker,
    kept,
    older,
    share_of,
    window,
)
from controlplane.traffic.deliveries.judge.tests.traffic import evidence


def at(now: float, ended: int, failed: int, control: tuple[int, int] = (1_000, 10)) -> EndedCounts:
    return EndedCounts(now, (ended, failed), control)


@pytest.mark.parametrize(
    ("ended", "failed", "control", "verdict"),
    [
        (100, 20, (1_000, 10), "fail"),
        (19, 19, (1_000, 10), "inconclusive"),  # too few requests
        (100, 4, (1_000, 0), "inconclusive"),  # less than 5 %
        (20, 4, (1_000, 0), "inconclusive"),  # one client that repeats its request
        (100, 20, (1_000, 100), "inconclusive"),  # control fails as well, so an engine is at fault
        (100, 20, (0, 0), "fail"),  # nothing to compare with
    ],
)
def test_many_failures_of_only_the_candidate_fail(
    ended: int, failed: int, control: tuple[int, int], verdict: str
) -> None:
    assert breaker([], at(5, ended, failed, control)).verdict == verdict


def test_only_the_last_half_minute_counts() -> None:
    earlier = [at(0, 1_000, 0, (0, 0)), at(20, 2_000, 0, (0, 0))]
    found = breaker(earlier, at(31, 2_100, 30, (500, 5)))
    assert (found.verdict, found.n) == ("inconclusive", (1_100, 500))
    assert breaker([*earlier, at(60, 2_100, 30, (500, 5))], at(95, 2_200, 60, (900, 5))).n == (100, 400)


def test_the_breaker_states_the_time_over_which_it_counted() -> None:
    first = at(7, 100, 20)
    assert breaker([], first).text == "20 of 100 requests failed since the split began, 10 of 1000 in control"
    assert breaker([first], at(42, 300, 60)).text == "40 of 200 requests failed in 35 s, 0 of 0 in control"


def test_windows_are_kept_for_a_minute() -> None:
    assert [each.at for each in kept([at(0, 0, 0), at(50, 0, 0)], 70)] == [50]


def test_a_window_counts_both_arms() -> None:
    found = window(evidence(1_000), 7.0)
    assert found.at == 7.0
    assert sum(found.candidate[:1]) + found.control[0] == 1_000


@pytest.mark.parametrize(
    ("errors", "ended", "before", "verdict"),
    [
        (50, 500, 0.0, "fail"),
        (50, 500, 0.05, "inconclusive"),
        (4, 20, 0.0, "inconclusive"),
        (0, 0, 0.0, "inconclusive"),
    ],
)
def test_after_promotion_the_usual_errors_are_the_reference(
    errors: int, ended: int, before: float, verdict: str
) -> None:
    assert after_promotion(errors, ended, before).verdict == verdict


def test_failures_possibly_from_before_the_promotion_do_not_count_against_the_candidate() -> None:
    found = after_promotion(60, 500, 0.0, older=50)
    assert (found.verdict, found.candidate) == ("inconclusive", 0.02)
    assert found.text == "60 of 500 requests failed in the last minute, 50 of them perhaps before the promotion"
    assert after_promotion(90, 500, 0.0, older=50).verdict == "fail"
    assert after_promotion(20, 500, 0.0, older=50).text.endswith(", 20 of them perhaps before the promotion")


def test_failures_before_the_promotion_are_forgotten_once_it_is_a_minute_old() -> None:
    promoted = at_promotion(None, at(100, 400, 30))
    promoted = at_promotion(promoted, at(104, 410, 40))
    assert at_promotion(promoted, at(106, 420, 60)) == promoted
    assert [older(promoted, now) for now in (104, 164, 165)] == [40, 40, 0]


def test_the_usual_errors_are_computed_from_enough_requests() -> None:
    assert share_of(at(0, 40, 10)) == 0.25
    assert share_of(at(0, 19, 19)) == 0.0
