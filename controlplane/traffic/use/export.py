"""Use as CSV."""

from collections.abc import Iterable

from controlplane.common.csv_cell import csv_text
from controlplane.traffic.use.selectors import COLUMNS, IDLE, UseLine


def csv_of(found: Iterable[UseLine]) -> str:
    return csv_text(COLUMNS, ([_value(line, column) for column in COLUMNS] for line in found))


def _value(line: UseLine, column: str) -> object:
    return IDLE if line.idle and column == "key" else getattr(line, column)
