"""The clock of context GPUs at their power limit."""

import pytest

from fleet.engine.dwdp import table_1
from fleet.engine.dwdp.clock import UNLIMITED, PowerLimit
from fleet.engine.power import GH100, Clock

H200 = PowerLimit(GH100.computing, GH100.reading, measured_at=0.0)  # at full clock


def test_arithmetic_during_waits_takes_as_long_as_in_the_law_of_the_twin() -> None:
    slowed_ms = H200.slowed_beside(100.0, 30.0)
    share = (100 + slowed_ms) / (130 + slowed_ms)
    assert (100 + slowed_ms) / 100 == pytest.approx(Clock(GH100).slowdown(share))
    assert H200.slowed_beside(100.0, 0.0) == pytest.approx(20.0)
    assert H200.slowed_beside(100.0, 1_000.0) == 0.0


def test_without_a_limit_nothing_is_slower() -> None:
    assert UNLIMITED.slowed_beside(100.0, 0.0) == 0.0
    assert UNLIMITED.slowed_with_copy(100.0, 50.0, lambda slowed_ms: 100 + slowed_ms) == 0.0


def test_a_copy_that_is_waited_for_lets_the_clock_rise() -> None:
    hidden = H200.slowed_with_copy(100.0, 50.0, lambda slowed_ms: 100 + slowed_ms)
    exposed = H200.slowed_with_copy(100.0, 200.0, lambda slowed_ms: max(200.0, 100 + slowed_ms))
    partly = H200.slowed_with_copy(100.0, 150.0, lambda slowed_ms: max(150.0, 100 + slowed_ms))
    assert hidden == pytest.approx(20.0, rel=1e-6)
    assert exposed == pytest.approx(0.0, abs=1e-6)
    assert partly == pytest.approx((120 - 0.27 * 150) / 0.73 - 100, rel=1e-6)


def test_copies_draw_power_that_computing_lacks() -> None:
    drawing = PowerLimit(GH100.computing, GH100.reading, copying=0.1, measured_at=0.0)
    assert drawing.slowed_with_copy(100.0, 50.0, lambda slowed_ms: 100 + slowed_ms) == pytest.approx(25.0, rel=1e-6)


def test_the_draws_of_an_h200_explain_three_quarters_of_the_published_slowing() -> None:
    power = table_1.POWER
    published_ms = table_1.COMPUTING_DWDP - table_1.COMPUTING
    by_clock_ms = table_1.COMPUTING * (power.computing / power.measured - 1)
    assert by_clock_ms / published_ms == pytest.approx(0.78, abs=0.01)
    assert power.copying * 1_200 == pytest.approx(63, abs=1)  # W of a GB200
