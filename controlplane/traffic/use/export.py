"""Use as CSV."""

import csv
from collections.abc import Iterable
from io import StringIO

from controlplane.common.csv_cell import as_text
from controlplane.traffic.use.selectors import COLUMNS, IDLE, UseLine


def csv_of(found: Iterable[UseLine]) -> str:
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for line in found:
        writer.writerow([_cell(line, column) for column in COLUMNS])
    return text.getvalue()


def _cell(line: UseLine, column: str) -> str:
    return as_text(IDLE if line.idle and column == "key" else getattr(line, column))
