"""Figures on pages: three digits, a unit, and a dash for unknown values."""

from typing import Any

import pytest

from controlplane.common import figures


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (figures.significant, 0.1234, "0.123"),
        (figures.significant, 12.34, "12.3"),
        (figures.significant, 12.0, "12"),
        (figures.significant, 1234.5, "1,234"),
        (figures.significant, 0, "0"),
        (figures.whole, 1_234_567, "1,234,567"),
        (figures.percent, 0.534, "53 %"),
        (figures.ms, 14.24, "14.2 ms"),
        (figures.ms, 999.4, "999 ms"),
        (figures.ms, 1240.0, "1.24 s"),
        (figures.dollars, 0, "$0.00"),
        (figures.dollars, 0.0049, "under $0.01"),
        (figures.dollars, 1234.5, "$1,234.50"),
        (figures.words, "least_decode", "least decode"),
        (figures.seconds, 0.84, "0.8 s"),
        (figures.seconds, 75, "75 s"),
        (figures.seconds, 600, "10 min"),
        (figures.seconds, 90_000, "25 h"),
        (figures.seconds, 400_000, "5 d"),
        (figures.limit, 1_048_576, "1,048,576"),
        (figures.limit, True, "true"),
        (figures.limit, (), "none"),
        (figures.limit, ("0", "1"), "0, 1"),
        (figures.limit, {"A": "1"}, "A=1"),
    ],
)
def test_a_figure_is_formatted(write: Any, value: Any, text: str) -> None:
    assert write(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (False, "", "off"),
        (True, "", "on"),
        (1, "hits", "1 hit"),
        (2, "hits", "2 hits"),
        (1, "ms", "1 ms"),
        (1, "requests/s", "1 requests/s"),
        ("a", "", "a"),
    ],
)
def test_an_option_is_formatted_for_readers(value: Any, unit: str, text: str) -> None:
    assert figures.setting(value, unit) == text


@pytest.mark.parametrize("write", [figures.significant, figures.whole, figures.percent, figures.ms, figures.seconds])
@pytest.mark.parametrize("unknown", [None, ""])
def test_an_unknown_figure_is_a_dash_and_never_0(write: Any, unknown: Any) -> None:
    assert write(unknown) == "–"


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [
        (1504.0, 1500.0, "1.504 s"),
        (1500.04, 1500.0, "1.50004 s"),
        (1500.0, 1500.0, "1.5 s"),
        (1240.0, 1500.0, "1.24 s"),
        (300.4, 300.0, "300.4 ms"),
        (999.9, 1000.0, "999.9 ms"),
    ],
)
def test_a_figure_is_distinguished_from_a_limit_that_it_does_not_equal(value: float, limit: float, text: str) -> None:
    assert figures.ms(value, limit) == text
