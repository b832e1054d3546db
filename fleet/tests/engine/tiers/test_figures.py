"""Figures 9 and 11 of arXiv 2605.03375, played event by event; devices.py has the constants fitted to both."""

import pytest

from bench import tier_events
from bench.tier_events import BLOCK
from fleet.engine.request import EngineRequest

K = 1024


def loaded(name: str, cached: int, prompt: int) -> tuple[EngineRequest, float]:
    """Return a prompt of which only the beginning is in the tier, and the rate in GB/s at which the tier was read."""
    asked, engine = tier_events.loaded(name, cached, prompt)
    stats = engine.stats().tiers
    assert stats is not None
    return asked, stats.tiers[0].read_bytes / stats.tiers[0].load_s / 1e9


@pytest.mark.parametrize(("name", "published"), [("ssd-tutti", 25.9), ("ssd-gds", 9.3), ("ssd", 3.4), ("dram", 36.0)])
def test_the_rates_of_figure_9_at_128k_are_reached(name: str, published: float) -> None:
    """The rate of Tutti was fitted; GDS reaches 11.9 in the figure, without the setup time that figure 8 needs."""
    asked, rate = loaded(name, 128 * K, 128 * K + BLOCK)
    assert asked.cached_tokens == 128 * K
    assert rate == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(("name", "published_s"), [("ssd-tutti", 3.43), ("ssd", 7.84)])
def test_the_times_of_figure_11_with_112k_of_128k_cached_are_reached(name: str, published_s: float) -> None:
    """Both rates were fitted."""
    asked, _ = loaded(name, 112 * K, 128 * K)
    assert asked.first_token_s - asked.arrived_s == pytest.approx(published_s, rel=0.03)


@pytest.mark.parametrize(("cached", "published"), [(32 * K, 0.058), (128 * K - BLOCK, 0.614)])
def test_tutti_is_as_far_below_gds_as_in_figure_11(cached: int, published: float) -> None:
    """The difference is predicted."""
    times = [loaded(name, cached, 128 * K)[0] for name in ("ssd-tutti", "ssd-gds")]
    tutti, gds = (asked.first_token_s - asked.arrived_s for asked in times)
    assert 1 - tutti / gds == pytest.approx(published, abs=0.035)
