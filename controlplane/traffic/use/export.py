"""Use as CSV. Clients choose names, so no cell may begin like a formula."""

import csv
from collections.abc import Iterable
from datetime import datetime
from io import StringIO

from controlplane.traffic.use.selectors import COLUMNS, IDLE, UseLine

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(found: Iterable[UseLine]) -> str:
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for line in found:
        writer.writerow([_cell(line, column) for column in COLUMNS])
    return text.getvalue()


def _cell(line: UseLine, column: str) -> str:
    return as_text(IDLE if line.idle and column == "key" else getattr(line, column))


def as_text(value: object) -> str:
    """A cell of a CSV."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return f"{value:.6f}"
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text
