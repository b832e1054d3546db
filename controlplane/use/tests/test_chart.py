"""The bars of the page Use: one for each period, also where nothing was used."""

from datetime import UTC, datetime, timedelta

import pytest

from controlplane.use.chart import HEIGHT, chart_of
from controlplane.use.selectors import UseLine

NOON = datetime(2026, 3, 31, 12, 20, tzinfo=UTC)
MIDNIGHT = NOON.replace(hour=0, minute=0)


def test_bars_are_as_high_as_their_cost_with_idle_on_top():
    yesterday = MIDNIGHT - timedelta(days=1)
    lines = [
        UseLine(start=yesterday, dollars=3.0),
        UseLine(start=yesterday, dollars=1.0, idle=True),
        UseLine(start=MIDNIGHT, dollars=1.0),
    ]
    chart = chart_of(lines, NOON - timedelta(days=2), NOON, "day")
    assert [(bar.start.day, bar.requests, bar.idle) for bar in chart.bars] == [(29, 0, 0), (30, 3, 1), (31, 1, 0)]
    highest = chart.highest
    assert (highest.idle_y, highest.idle_height, highest.requests_y) == (0.0, HEIGHT / 4, HEIGHT / 4)


@pytest.mark.parametrize(
    ("days", "per", "count", "first"),
    [
        (1, "hour", 25, NOON.replace(day=30, minute=0)),
        (7, "day", 8, MIDNIGHT.replace(day=24)),
        (365, "month", 13, datetime(2025, 3, 1, tzinfo=UTC)),
    ],
)
def test_each_period_has_a_bar_from_the_one_that_has_begun(days, per, count, first):
    chart = chart_of([UseLine(start=first, dollars=1.0)], NOON - timedelta(days=days), NOON, per)
    assert (len(chart.bars), chart.bars[0].start, chart.bars[0].requests) == (count, first, 1.0)


def test_what_cost_nothing_has_no_chart():
    assert chart_of([UseLine(start=MIDNIGHT, requests=5)], MIDNIGHT, NOON, "day") is None
