"""Compare tiers under one load: which is fastest, what pays, and how long drives last."""

import pytest

from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.engine.tiers.devices import DRAM, SSD_TUTTI
from fleet.engine.tiers.loading import paged
from fleet.engine.tiers.sizes import layout_of
from fleet.systems.prices import Prices
from fleet.systems.tiers.load import LEVAL
from fleet.systems.tiers.serving import TieredEngine
from fleet.systems.tiers.study import Runs, Study, cost_of, memory_of, tiers_of, wear_of

LAYOUT = layout_of(profile())
STUDY = Study(
    TieredEngine(paged(law_of(profile())), LAYOUT, 0.41e6), tiers_of(LAYOUT.bytes_per_token), LEVAL, Runs(3, 400, 1_000)
)
RATE = 1.0


def test_tutti_is_fastest_and_hbm_alone_is_slowest() -> None:
    times = {name: STUDY.ttft_s(name, RATE) for name in STUDY.tiers}
    assert min(times, key=lambda name: times[name]) == "ssd-tutti"
    assert times["dram"] < times["hbm"]


def test_hits_grow_with_the_capacity_below_hbm() -> None:
    hbm, dram, drives = (STUDY.shares(name) for name in ("hbm", "dram", "ssd"))
    assert hbm.tier == 0
    assert hbm.hbm == dram.hbm == drives.hbm > 0
    assert 0 < dram.tier < drives.tier
    assert hbm.new_tokens > dram.new_tokens > drives.new_tokens
    assert hbm.bubble_s == 0


def test_contentions_differ_only_in_how_they_write() -> None:
    undisturbed, naive = STUDY.middle("ssd", RATE), STUDY.served("ssd", RATE, "none")
    assert undisturbed.writes_s > 0
    assert {run.writes_s for run in naive} == {0.0}
    assert STUDY.ttft_s("ssd", RATE, "none") < STUDY.ttft_s("ssd", RATE)
    assert STUDY.ttft_s("ssd-tutti", RATE, "slack") <= STUDY.ttft_s("ssd-tutti", RATE, "naive")


def test_the_capacity_is_the_highest_rate_within_the_limit() -> None:
    found = STUDY.capacity("ssd-tutti", 1.0)
    assert STUDY.ttft_s("ssd-tutti", found) <= 1.0 < STUDY.ttft_s("ssd-tutti", found * 1.1)
    assert STUDY.capacity("hbm", 0.001) == 0


def test_a_tier_pays_if_it_saves_more_engine_time_than_it_costs() -> None:
    prices = Prices()
    drives = cost_of(STUDY, "ssd-tutti", prices, 1, 256, 14_000)
    assert drives.must_save == pytest.approx(1.2296)
    assert cost_of(STUDY, "dram", prices, 1, 256, 14_000).must_save == pytest.approx(1.45056)
    alone = cost_of(STUDY, "hbm", prices, 1, 256, 14_000)
    assert (alone.must_save, alone.saves, alone.per_hour) == (1.0, 1.0, 5.0)
    assert drives.saves > drives.must_save
    assert drives.per_million is not None
    assert alone.per_million is not None
    assert drives.per_million < alone.per_million
    assert drives.per_million / alone.per_million == pytest.approx(drives.must_save / drives.saves, rel=1e-6)
    assert cost_of(STUDY, "dram", Prices(0.0, 0.0, 0.0), 1, 256, 14_000).must_save == 1.0


def test_only_drives_are_charged_as_drives() -> None:
    assert memory_of(DRAM, 256, 14_000) == (256, 0)
    assert memory_of(SSD_TUTTI, 256, 14_000) == (0, 14_000)
    assert memory_of(None, 256, 14_000) == (0, 0)


def test_drives_that_are_overwritten_twice_a_day_last_half_their_rated_lifetime() -> None:
    day = 15.36e12 / 86_400
    assert wear_of(2 * day, 15.36e12).writes_per_day == pytest.approx(2)
    assert wear_of(2 * day, 15.36e12).years == pytest.approx(2.5)
    assert wear_of(2 * day, 15.36e12, amplification=2).years == pytest.approx(1.25)
    assert wear_of(2 * day, 15.36e12, rated=3).years == pytest.approx(7.5)
    assert wear_of(0, 15.36e12).years > 1_000
