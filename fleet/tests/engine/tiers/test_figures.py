"""Published figures of arXiv 2605.03375 by the engine, event by event. Fitted: to figure 8 the mean length of prompts
and the setup of GDS, to 9, 11 and 13 other constants (devices.py); the rest of figure 8 is predicted."""

from statistics import median

import pytest

from fleet.engine.request import EngineRequest
from fleet.tests.engine.tiers.leval import BLOCK, engine, played

K = 1024
FIGURE_8 = {"hbm": 7.2, "ssd": 6.5, "ssd-gds": 3.9, "dram": 2.8, "ssd-tutti": 0.87}  # mean TTFT, s, at 1.5 requests/s
CACHED = {"hbm": 0.08, "dram": 0.53, "ssd": 0.84}
SEEDS = range(9)


@pytest.mark.slow
def test_figure_8_order_and_times() -> None:
    """Medians of nine runs; single runs differ by half."""
    found = {name: [played(name, 1.5, seed, warm=1500, measured=2000) for seed in SEEDS] for name in FIGURE_8}
    times = {name: median(ttft for ttft, _ in runs) for name, runs in found.items()}
    assert sorted(times, key=lambda name: -times[name]) == list(FIGURE_8)
    for name, published in FIGURE_8.items():
        assert times[name] == pytest.approx(published, rel=0.5), times
    for name, published in CACHED.items():
        assert median(cached for _, cached in found[name]) == pytest.approx(published, abs=0.1)


def loaded(name: str, cached: int, prompt: int) -> tuple[EngineRequest, float]:
    """A prompt whose beginning is in the tier only, and the rate at which it came from there, GB/s."""
    one = engine(name)
    chain = [hash((name, at)) for at in range(prompt // BLOCK)]
    one.add_request(EngineRequest("before", cached, 1, chain[: cached // BLOCK]), 0.0)
    one.add_request(EngineRequest("filler", one.pool.total * BLOCK - 1, 1, []), 100.0)
    asked = EngineRequest("asked", prompt, 1, chain)
    one.add_request(asked, 1000.0)
    while (due_s := one.next_turn_s()) is not None:
        one.turn(due_s)
    stats = one.stats().tiers
    assert stats is not None
    return asked, stats.tiers[0].read_bytes / stats.tiers[0].load_s / 1e9


@pytest.mark.parametrize(("name", "published"), [("ssd-tutti", 25.9), ("ssd-gds", 9.3), ("ssd", 3.4), ("dram", 19.4)])
def test_figure_9_rates_at_128k(name: str, published: float) -> None:
    """Tutti's was fitted; that of GDS is 11.9 in the figure, without the setup that figure 8 needs."""
    asked, rate = loaded(name, 128 * K, 128 * K + BLOCK)
    assert asked.cached_tokens == 128 * K
    assert rate == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(("name", "published_s"), [("ssd-tutti", 3.43), ("ssd", 7.84)])
def test_figure_11_with_112k_of_128k_cached(name: str, published_s: float) -> None:
    """Both fitted."""
    asked, _ = loaded(name, 112 * K, 128 * K)
    assert asked.first_token_s - asked.arrived_s == pytest.approx(published_s, rel=0.03)


@pytest.mark.parametrize(("cached", "published"), [(32 * K, 0.058), (128 * K - BLOCK, 0.614)])
def test_figure_11_tutti_below_gds(cached: int, published: float) -> None:
    """Predicted."""
    times = [loaded(name, cached, 128 * K)[0] for name in ("ssd-tutti", "ssd-gds")]
    tutti, gds = (asked.first_token_s - asked.arrived_s for asked in times)
    assert 1 - tutti / gds == pytest.approx(published, abs=0.035)
