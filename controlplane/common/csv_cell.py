"""Tables as CSV in which no cell begins like a formula, because people choose the names. Pure."""

import csv
from collections.abc import Iterable
from datetime import datetime
from io import StringIO

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]], *, exact: bool = False) -> str:
    """Write CSV in the only form that Weir emits. With `exact`, floats have all digits, otherwise six decimals."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([as_text(value, exact=exact) for value in row] for row in rows)
    return text.getvalue()


def as_text(value: object, *, exact: bool = False) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return float.__repr__(value) if exact else f"{value:.6f}"
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text
