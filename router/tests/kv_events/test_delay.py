"""The delay of events is measured relative to the quickest recent ones, whatever the engine's clock shows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kv_events.sequence import FORGOTTEN_S, ShortestDelay


def test_a_difference_between_clocks_is_not_a_delay() -> None:
    shortest = ShortestDelay()
    assert shortest.beyond(-3600.0, 0) == 0
    assert shortest.beyond(-3599.5, 1) == 0.5


@pytest.mark.parametrize("set_back_s", [5.0, 3600.0])
def test_a_clock_that_was_set_back_is_forgotten_after_a_while(set_back_s: float) -> None:
    shortest = ShortestDelay()
    shortest.beyond(0.01, 0)
    assert shortest.beyond(set_back_s, 1) == pytest.approx(set_back_s - 0.01)
    late = [shortest.beyond(set_back_s, second) for second in range(2, int(2 * FORGOTTEN_S) + 2)]
    assert late[-1] == 0
    assert late[int(FORGOTTEN_S) - 3] > 1  # not earlier, because the engine may really be late


def test_a_clock_that_was_set_forward_takes_effect_at_once() -> None:
    shortest = ShortestDelay()
    shortest.beyond(0.01, 0)
    assert shortest.beyond(-5.0, 1) == 0
    assert shortest.beyond(-4.0, 2) == 1


def test_delays_from_before_a_long_silence_are_forgotten() -> None:
    shortest = ShortestDelay()
    shortest.beyond(0.01, 0)
    assert shortest.beyond(7.0, 2 * FORGOTTEN_S) == 0


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(-10, 10)), min_size=1, max_size=40))
def test_the_shortest_delay_covers_one_to_two_windows(steps: list[tuple[float, float]]) -> None:
    shortest, now, seen = ShortestDelay(), 0.0, []
    for passed_s, delay_s in steps:
        now += passed_s
        seen.append((now, delay_s))
        beyond = shortest.beyond(delay_s, now)
        of_one = min(delay for at, delay in seen if now - at < FORGOTTEN_S)
        of_two = min(delay for at, delay in seen if now - at < 2 * FORGOTTEN_S)
        assert delay_s - of_one <= beyond <= delay_s - of_two
