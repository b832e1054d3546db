"""All CSV is written by one function, so that no name chosen by people becomes a formula."""

import csv
import io
from pathlib import Path

import pytest

from controlplane.common.csv_cell import csv_text
from controlplane.tests.test_words import CODE, PRODUCT

WRITER = Path("controlplane/common/csv_cell.py")


def test_no_other_module_writes_csv() -> None:
    writing = [
        path.relative_to(CODE)
        for path in PRODUCT
        if any(call in path.read_text() for call in ("csv.writer", "csv.DictWriter", "import writer", "to_csv("))
    ]
    assert writing == [WRITER]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_text_that_begins_like_a_formula_is_escaped_and_a_negative_number_is_not(start: str) -> None:
    text = csv_text(("name", "value"), [(f"{start}1", -0.1234567)], exact=True)
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["name", "value"], [f"'{start}1", "-0.1234567"]]
