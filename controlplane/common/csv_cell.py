"""A table as CSV: people choose names, so no cell may begin like a formula. Pure."""

import csv
from collections.abc import Iterable
from datetime import datetime
from io import StringIO

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(map(as_text, row) for row in rows)
    return text.getvalue()


def as_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return f"{value:.6f}"
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text
