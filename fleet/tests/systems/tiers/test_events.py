"""The published loads of Tutti on the twin's engine; the table of the document is what it plays."""

import pytest

from bench import sheets, tiers
from fleet.systems.tiers import events
from fleet.systems.tiers.events import PlayedRuns
from fleet.systems.tiers.load import LEVAL


def documented() -> set[tuple[str, ...]]:
    return {*map(tuple, sheets.read("tutti-played"))}


def test_figure_13_is_documented_as_it_is_played() -> None:
    assert {*tiers.crossovers()} <= documented()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_loogle_is_documented_as_it_is_played() -> None:
    assert {*tiers.loogle()} <= documented()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_figure_8_is_documented_as_it_is_played_and_in_the_published_order() -> None:
    rows = [*tiers.figure_8()]
    assert {*rows} <= documented()
    times = [float(row[2].split()[0]) for row in rows[: len(tiers.TTFT_S)]]
    assert times == sorted(times, reverse=True)
    assert times == [pytest.approx(published, rel=0.5) for published in tiers.TTFT_S.values()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_rates_within_a_second_are_documented_and_in_the_published_order() -> None:
    """1.0 with DRAM, 0.75 with GDS, at least 1.5 with Tutti."""
    rows = [*tiers.capacities()]
    assert {*rows} <= documented()
    dram, gds, tutti = (float(row[2].split()[0]) for row in rows)
    assert gds < dram < tutti
    assert tutti >= 1.5
    assert (dram, gds) == (pytest.approx(1.0, rel=0.5), pytest.approx(0.75, rel=0.5))


@pytest.mark.slow
def test_gaps_between_tokens_are_documented_and_shortest_with_tutti() -> None:
    rows = [*tiers.gaps()]
    assert {*rows} <= documented()
    assert all(float(row[2].split()[0]) > 0 for row in rows)


def test_a_load_that_is_played_hits_hbm_and_then_the_tier() -> None:
    few = PlayedRuns(1, 300, 200)
    _, alone = events.played("hbm", LEVAL, 1.5, 0, few)
    ttft_s, cached = events.played("ssd-tutti", LEVAL, 1.5, 0, few)
    assert 0 < alone < 0.3 < cached
    assert ttft_s < events.ttft_s("hbm", LEVAL, 1.5, few)
