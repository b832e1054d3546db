"""Cells of the systems' tables."""

import math
import statistics
from collections.abc import Sequence

from django import template

from controlplane.common import figures
from controlplane.evidence.systems.system import Chart, Fact, Figure, Table, Value
from fleet.counted import counted, percent

register = template.Library()


@register.filter
def cell(value: Value) -> str:
    """Format with three significant digits at any size; return a text unchanged."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    if not 1e-5 <= abs(value) < 1e15:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


@register.filter
def lead(text: str) -> str:
    """Return the first sentence."""
    first, end, _ = text.partition(". ")
    return f"{first}." if end else text


@register.filter
def rest(text: str) -> str:
    """Return the text after the first sentence."""
    return text.removeprefix(lead(text)).strip()


@register.filter
def quantity(fact: Fact) -> str:
    """Show a fact with its unit: in seconds from 1,000 ms on, and with the dollar sign before the figure, as
    elsewhere."""
    if fact.unit == "ms" and not isinstance(fact.value, str):
        return figures.ms(fact.value)
    return with_unit(fact.value, fact.unit)


@register.filter
def with_unit(value: Value, unit: str) -> str:
    if unit.startswith("$") and value is not None:
        return f"${cell(value)}{unit[1:]}"
    return f"{cell(value)} {unit}".strip()


@register.filter
def is_number(value: Value) -> bool:
    return value is None or not isinstance(value, str)


@register.filter
def signed_percent(share: float | None) -> str:
    if share is None:
        return "–"
    whole = round(share * 100)
    return f"{whole:+,} %".replace("-", "\N{MINUS SIGN}") if whole else "0 %"


@register.filter
def agreement(figures: Sequence[Figure]) -> str:
    """Describe the agreement: 61 values; 57 predicted, with a median error of 3 %. Agreement is meaningful only for
    predicted values."""
    errors = [abs(figure.error) for figure in figures if figure.basis == "predicted" and figure.error is not None]
    known = f", with a median error of {percent(statistics.median(errors))}" if errors else ""
    return f"{counted(len(figures), 'value')}; {len(errors)} predicted{known}"


@register.filter
def as_table(chart: Chart) -> Table:
    """Return the numbers of a picture, with a row for each x of any series."""
    places = {x: None for series in chart.series for x in series.x}
    ordered = tuple(places) if any(isinstance(x, str) for x in places) else tuple(sorted(places, key=_order))
    at = [dict(zip(series.x, series.y, strict=True)) for series in chart.series]
    x, y = (f"{axis.title}, {axis.unit}" if axis.unit else axis.title for axis in (chart.x, chart.y))
    return Table(
        f"{chart.title} ({y})",
        (x, *(series.name for series in chart.series)),
        tuple((place, *(values.get(place) for values in at)) for place in ordered),
    )


def _order(x: Value) -> float:
    return float(x or 0)
