"""The fit recovers the time law of prompts from their measured times."""

import random

import pytest

from router.pool.load.prompt_fit import Factors, PromptFit, Terms, terms

LAW = (50e-6, 1e-9, 1e-6, 0.02)


def seconds_of(row: Terms, factors: Factors) -> float:
    return sum(term * factor for term, factor in zip(row, factors, strict=True))


def fitted(law: Factors, rows: list[Terms]) -> Factors:
    fit = PromptFit()
    for row in rows:
        fit.add(row, seconds_of(row, law))
    return fit.fitted()


def drawn(count: int) -> list[Terms]:
    draw = random.Random(1)
    return [terms(draw.randrange(512, 30_000), draw.choice([0, 3_000, 90_000])) for _ in range(count)]


def test_nothing_is_known_without_prompts() -> None:
    assert PromptFit().fitted() == (0.0, 0.0, 0.0, 0.0)


def test_the_law_is_recovered_from_many_different_prompts() -> None:
    rows = drawn(200)
    found = fitted(LAW, rows)
    assert [seconds_of(row, found) for row in rows] == pytest.approx([seconds_of(row, LAW) for row in rows], rel=0.03)


def test_equal_prompts_reveal_only_a_rate() -> None:
    found = fitted(LAW, [terms(2_000, 0)] * 5)
    assert found == pytest.approx((seconds_of(terms(2_000, 0), LAW) / 2_000, 0.0, 0.0, 0.0))


def test_no_term_is_negative() -> None:
    assert min(fitted((50e-6, -1e-10, 0.0, 0.3), drawn(200))) == 0.0


def test_older_prompts_count_less() -> None:
    fit = PromptFit()
    for seconds in (1.0,) * 500 + (0.1,) * 500:
        fit.add(terms(1_000, 0), seconds)
    assert fit.fitted()[0] == pytest.approx(0.1 / 1_000, rel=0.1)
