import math

import pytest

from controlplane.traffic.deliveries.judge.statistics.slow import limits


def rows(factor: float = 1.0, n: int = 100) -> list[tuple[str, int, float]]:
    """Return rows whose TTFT is half a millisecond per token; one in ten takes slightly more than `factor` times as
    long.
    """
    return [("warm", 100 + number, (100 + number) * 0.5 * (factor if number % 10 == 9 else 1.0)) for number in range(n)]


def test_the_limit_follows_the_length() -> None:
    a, b, tau = limits(rows())["warm"]
    assert math.exp(a + b * math.log(400)) == pytest.approx(200, rel=0.01)
    assert tau == pytest.approx(math.log(1.5))


def test_a_fleet_with_long_waits_has_a_wider_limit() -> None:
    spread = [(name, tokens, ms * (1 + number % 7)) for number, (name, tokens, ms) in enumerate(rows())]
    assert limits(spread)["warm"][2] > math.log(1.5)


def test_longer_prompts_never_have_a_lower_limit() -> None:
    falling = [("warm", 100 + number, 500.0 - number) for number in range(100)]
    assert limits(falling)["warm"][1] == 0.0


def test_prompts_of_one_length_have_a_level() -> None:
    a, b, _ = limits([("warm", 100, 50.0)] * 40)["warm"]
    assert (math.exp(a), b) == (pytest.approx(50.0), 0.0)


def test_a_class_with_few_answers_has_no_limit() -> None:
    assert limits(rows(n=29)) == {}


def test_requests_without_length_or_time_are_left_out() -> None:
    assert limits([("warm", 0, 5.0), ("warm", 5, 0.0)] * 40) == {}
