"""The published loads of Tutti on the twin's engine; the documented table comes from these runs."""

import pytest

from bench import sheets, tier_events, tiers
from bench.tier_events import PlayedRuns
from fleet.systems.tiers.load import LEVAL


def documented() -> set[tuple[str, ...]]:
    return {*map(tuple, sheets.read("tutti-played"))}


def test_figure_13_is_documented_as_played() -> None:
    assert {*tiers.crossovers()} <= documented()


@pytest.mark.slow
def test_the_documented_values_of_a_tier_are_those_of_the_twin() -> None:
    """One tier is enough here, since all of them take minutes."""
    played = {*tiers.loogle(["ssd-tutti"]), *tiers.figure_8(["ssd-tutti"])}
    assert len(played) == 3
    assert played <= documented()


def values_of(beginning: str) -> list[float]:
    """Return our values in the order of the document."""
    return [float(row[2].split()[0]) for row in sheets.read("tutti-played") if row[0].startswith(beginning)]


def test_figure_8_has_the_published_order() -> None:
    times = values_of("Figure 8, 1.5 requests/s: mean TTFT")
    assert times == sorted(times, reverse=True)
    assert times == [pytest.approx(published, rel=0.5) for published in tiers.TTFT_S.values()]


def test_the_rates_reached_within_a_second_have_the_published_order() -> None:
    """The rates are 1.0 with DRAM, 0.75 with GDS and at least 1.5 with Tutti."""
    dram, gds, tutti = values_of("Figure 8: requests/s with a mean TTFT up to 1 s")
    assert gds < dram < tutti
    assert tutti >= 1.5
    assert (dram, gds) == (pytest.approx(1.0, rel=0.5), pytest.approx(0.75, rel=0.5))


@pytest.mark.slow
def test_gaps_between_tokens_are_documented_and_shortest_with_tutti() -> None:
    rows = [*tiers.gaps()]
    assert {*rows} <= documented()
    assert all(float(row[2].split()[0]) > 0 for row in rows)


def test_with_longer_answers_the_gaps_of_the_tiers_converge() -> None:
    """The published gaps are 22 and 24.4 % below DRAM and GDS; the length of the answers is not published."""
    dram, gds, long_dram, long_gds = values_of("L-Eval's own documents, 1.5 requests/s: ITL of Tutti below")
    assert (long_dram, long_gds) == (pytest.approx(22, rel=0.1), pytest.approx(24.4, rel=0.1))
    assert dram > 2 * long_dram
    assert gds > 2 * long_gds


def test_a_played_load_hits_hbm_first_and_then_the_tier() -> None:
    few = PlayedRuns(1, 300, 200)
    _, alone = tier_events.played("hbm", LEVAL, 1.5, 0, few)
    ttft_s, cached = tier_events.played("ssd-tutti", LEVAL, 1.5, 0, few)
    assert 0 < alone < 0.3 < cached
    assert ttft_s < tier_events.ttft_s("hbm", LEVAL, 1.5, few)
