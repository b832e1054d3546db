import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.traffic.deliveries.judge.statistics.comparisons import Counted, e_value


def test_equal_rates_are_not_evidence() -> None:
    assert e_value(Counted(1_000, 5), Counted(9_000, 45), 1.5) < 1


def test_many_more_errors_are_evidence() -> None:
    assert e_value(Counted(1_000, 30), Counted(9_000, 45), 1.5) > 1_000


def test_an_arm_without_sessions_is_not_evidence() -> None:
    assert e_value(Counted(0, 0), Counted(9_000, 45), 1.5) == 1.0
    assert e_value(Counted(100, 5), Counted(0, 0), 1.5) == 1.0
    assert Counted(0, 0).rate == 0.0


def test_zero_hits_are_not_evidence() -> None:
    assert e_value(Counted(1_000, 0), Counted(9_000, 0), 1.5) == pytest.approx(1.0)


def test_evidence_beyond_every_number_is_infinite() -> None:
    assert e_value(Counted(10_000, 9_000), Counted(90_000, 1), 1.5) == math.inf


@given(st.integers(0, 60), st.integers(0, 200))
def test_one_more_hit_of_the_candidate_is_never_weaker_evidence(hits: int, control: int) -> None:
    fewer, more = (e_value(Counted(500, hits + one), Counted(4_500, control), 1.5) for one in (0, 1))
    assert more > fewer


@pytest.mark.parametrize("ratio", [0.7, 1.5])
def test_a_count_guard_is_rarely_wrong_however_often_it_is_judged(ratio: float) -> None:
    """The true ratios are the allowed one and lower ones, judged after every hit. 1/α is 20: at
    most 5 % may be wrong.
    """
    draw, wrong = random.Random(5), 0
    p = ratio * 0.1 / (ratio * 0.1 + 0.9)
    for _ in range(500):
        hits = 0
        for n in range(1, 81):
            hits += draw.random() < p
            if e_value(Counted(1_000, hits), Counted(9_000, n - hits), 1.5) >= 20:
                wrong += 1
                break
    assert wrong <= 25
