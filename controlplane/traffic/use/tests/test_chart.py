"""The bars of the page Use: one for each period, even without use."""

from datetime import UTC, datetime, timedelta

import pytest

from controlplane.traffic.use.chart import HEIGHT, chart_of
from controlplane.traffic.use.selectors import UseLine

NOON = datetime(2026, 3, 31, 12, 20, tzinfo=UTC)
MIDNIGHT = NOON.replace(hour=0, minute=0)


def test_bars_are_as_high_as_their_cost_with_idle_on_top():
    yesterday = MIDNIGHT - timedelta(days=1)
    lines = [
        UseLine(start=yesterday, key="1", name="ci", dollars=2.0),
        UseLine(start=yesterday, key="", name="", dollars=1.0),
        UseLine(start=yesterday, key="", dollars=1.0, idle=True),
        UseLine(start=MIDNIGHT, key="1", name="ci", dollars=1.0),
    ]
    chart = chart_of(lines, "key", NOON - timedelta(days=2), NOON, "day")
    assert chart.names == (("ci", "1"), ("no key", "2"), ("idle", "idle"))
    costs = [(bar.start.day, [part.dollars for part in bar.parts]) for bar in chart.bars]
    assert costs == [(29, [0, 0, 0]), (30, [2, 1, 1]), (31, [1, 0, 0])]
    edges = [(part.y, part.height) for part in chart.highest.parts]
    assert edges == [(HEIGHT / 2, HEIGHT / 2), (HEIGHT / 4, HEIGHT / 4), (0.0, HEIGHT / 4)]


def test_the_most_expensive_are_named_and_the_others_are_one_part():
    lines = [UseLine(start=MIDNIGHT, pool=f"pool-{i}", dollars=i) for i in range(9)]
    chart = chart_of(lines, "pool", MIDNIGHT, NOON, "day")
    assert [name for name, _ in chart.names] == [*(f"pool-{i}" for i in range(8, 3, -1)), "3 others"]
    assert chart.bars[0].parts[-1].dollars == 1 + 2 + 3
    assert chart.bars[0].parts[-1].shade == "6"


@pytest.mark.parametrize(
    ("days", "per", "count", "first"),
    [
        (1, "hour", 25, NOON.replace(day=30, minute=0)),
        (7, "day", 8, MIDNIGHT.replace(day=24)),
        (365, "month", 13, datetime(2025, 3, 1, tzinfo=UTC)),
    ],
)
def test_each_period_since_the_first_has_a_bar(days, per, count, first):
    chart = chart_of([UseLine(start=first, pool="demo", dollars=1.0)], "pool", NOON - timedelta(days=days), NOON, per)
    assert (len(chart.bars), chart.bars[0].start, chart.bars[0].dollars) == (count, first, 1.0)


def test_lines_without_cost_have_no_chart():
    assert chart_of([UseLine(start=MIDNIGHT, key="", requests=5)], "key", MIDNIGHT, NOON, "day") is None
