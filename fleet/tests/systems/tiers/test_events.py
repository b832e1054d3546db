"""The published loads of Tutti on the twin's engine; the table of the document is what it plays."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from bench import tiers
from fleet.systems.tiers import events
from fleet.systems.tiers.events import PlayedRuns
from fleet.systems.tiers.load import LEVAL

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "findings" / "reproduced.md"


def documented() -> list[tuple[str, ...]]:
    head = f"| {' | '.join(tiers.HEADER)} |\n{'|---' * len(tiers.HEADER)}|\n"
    _, _, table = DOCUMENT.read_text().partition(head)
    return [_cells(line.strip("| ").split("|")) for line in table.partition("\n\n")[0].splitlines()]


def _cells(row: Iterable[str]) -> tuple[str, ...]:
    return tuple(cell for cell in (each.strip() for each in row) if cell)


def test_figure_13_is_documented_as_it_is_played() -> None:
    assert {_cells(row) for row in tiers.crossovers()} <= {*documented()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_loogle_is_documented_as_it_is_played() -> None:
    assert {_cells(row) for row in tiers.loogle()} <= {*documented()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_figure_8_is_documented_as_it_is_played_and_in_the_published_order() -> None:
    rows = [*tiers.figure_8()]
    assert {_cells(row) for row in rows} <= {*documented()}
    times = [float(row[2].split()[0]) for row in rows[: len(tiers.TTFT_S)]]
    assert times == sorted(times, reverse=True)
    assert times == [pytest.approx(published, rel=0.5) for published in tiers.TTFT_S.values()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_rates_within_a_second_are_documented_and_in_the_published_order() -> None:
    """1.0 with DRAM, 0.75 with GDS, at least 1.5 with Tutti."""
    rows = [*tiers.capacities()]
    assert {_cells(row) for row in rows} <= {*documented()}
    dram, gds, tutti = (float(row[2].split()[0]) for row in rows)
    assert gds < dram < tutti
    assert tutti >= 1.5
    assert (dram, gds) == (pytest.approx(1.0, rel=0.5), pytest.approx(0.75, rel=0.5))


@pytest.mark.slow
def test_gaps_between_tokens_are_documented_and_shortest_with_tutti() -> None:
    rows = [*tiers.gaps()]
    assert {_cells(row) for row in rows} <= {*documented()}
    assert all(float(row[2].split()[0]) > 0 for row in rows)


def test_a_load_that_is_played_hits_hbm_and_then_the_tier() -> None:
    few = PlayedRuns(1, 300, 200)
    _, alone = events.played("hbm", LEVAL, 1.5, 0, few)
    ttft_s, cached = events.played("ssd-tutti", LEVAL, 1.5, 0, few)
    assert 0 < alone < 0.3 < cached
    assert ttft_s < events.ttft_s("hbm", LEVAL, 1.5, few)
