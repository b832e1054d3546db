"""Measured tables as CSV files in docs/findings/tables; the pages draw the conclusions."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "findings" / "tables"


def sheets(lines: Iterable[str]) -> Iterator[list[list[str]]]:
    """Yield one sheet for all Markdown tables of equal columns; each row begins with the title of its table. A star
    marks bold text."""
    found: dict[tuple[str, ...], list[list[str]]] = {}
    part, title, columns = "", "", ()
    for line, following in pairwise([*lines, ""]):
        if line.startswith("### "):
            part = f"{line[4:]}: "
        elif line.startswith("**"):
            title = part + line.replace("**", "")
        elif following.startswith("|---"):
            first, *others = cells(line)
            columns = ("table", first or "arm", *others)
        elif line.startswith("| "):
            found.setdefault(columns, [list(columns)]).append([title, *cells(line)])
    yield from found.values()


def cells(line: str) -> tuple[str, ...]:
    return tuple(re.sub(r"^\*\*(.*)\*\*$", r"\1 *", cell.strip()) for cell in line.strip()[1:-1].split("|"))


def write(name: str, lines: Iterable[str]) -> None:
    """Write NAME.csv, and NAME-2.csv and so on for tables with other columns."""
    for number, rows in enumerate(sheets(lines), 1):
        save(f"{name}-{number}" if number > 1 else name, rows)


def save(name: str, rows: Iterable[Sequence[str]]) -> None:
    with (FOLDER / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def updated(name: str, rows: Iterable[Sequence[str]], named_by: int) -> dict[tuple[str, ...], Sequence[str]]:
    """Return the rows of NAME.csv by their first columns, with the given rows in place of equal ones."""
    return {tuple(row[:named_by]): row for row in [*read(name)[1:], *rows]}


def read(name: str) -> list[list[str]]:
    """Return the rows of NAME.csv, its columns first."""
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return list(csv.reader(file))
