"""Hourly prices and the cost of a million tokens."""

import pytest

from fleet.systems.prices import Prices, per_million


def test_hourly_prices_of_gpu_and_memory_are_the_published_ones() -> None:
    assert Prices().per_hour(1) == 5
    assert Prices().per_hour(1, dram_gb=256) == pytest.approx(5 + 2.2528)
    assert Prices().per_hour(2, ssd_gb=14_000) == pytest.approx(10 + 1.148)


def test_a_million_tokens_cost_their_share_of_an_hour() -> None:
    assert per_million(3.6, 1_000) == pytest.approx(1.0)
    assert per_million(3.6, 0) is None
