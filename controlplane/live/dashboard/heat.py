"""The KV usage of each instance over time as one matrix of bytes, made once for all viewers. Pure."""

import base64
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import TypedDict

from controlplane.live.dashboard.frame.types import HistoryRow
from controlplane.live.dashboard.kept_row import STEPS, joined, names

COLUMNS = 150  # columns of the heat map over any range
ROWS_PER_COLUMN = 4  # frames looked at; a bin of an hour has 24
NO_DATA = 255
PERCENT = bytes([NO_DATA, *(int(100 * step / STEPS + 0.5) for step in range(256 - 1))])  # percentage by kept byte

Heat = TypedDict("Heat", {"from": int, "bin_s": int, "columns": int, "ids": list[str], "cells": str})  # cells: base64


def cells(rows: Sequence[HistoryRow], end: float, seconds: int) -> Heat:
    """Return the cells. `rows` are oldest first. A cell is the highest KV usage in its bin in percent; NO_DATA without
    a sample."""
    width = max(1, math.ceil(seconds / COLUMNS))
    last = math.floor(end / width)
    first = last - math.ceil(seconds / width) + 1
    count = last - first + 1
    filled = [
        (column, ids, highest)
        for column, group in groupby(_thinned(rows, width), lambda row: math.floor(row["at"] / width) - first)
        if 0 <= column < count
        for ids, highest in _highest(group)
    ]
    found = list(dict.fromkeys(chain.from_iterable(names(ids) for ids, _ in groupby(ids for _, ids, _ in filled))))
    return {
        "from": first * width,
        "bin_s": width,
        "columns": count,
        "ids": found,
        "cells": base64.b64encode(_matrix(found, count, filled)).decode(),
    }


def _thinned(rows: Sequence[HistoryRow], width: int) -> Sequence[HistoryRow]:
    """Thin the rows: one row a second is more than a wide bin needs; the newest stays."""
    if len(rows) < 2:
        return rows
    every = (rows[-1]["at"] - rows[0]["at"]) / (len(rows) - 1) or 1.0
    step = max(1, math.floor(width / every / ROWS_PER_COLUMN))
    return rows[::-step][::-1]


def _highest(rows: Iterable[HistoryRow]) -> Iterator[tuple[str, bytes]]:
    """Yield the highest of consecutive rows with the same instances, the cheapest way for many instances."""
    for ids, group in groupby(rows, lambda row: row["ids"]):
        first, *others = [row["kv"] for row in group]
        yield ids, bytes(map(max, first, *others)) if others else first


def _matrix(found: list[str], count: int, filled: Iterable[tuple[int, str, bytes]]) -> bytes:
    """Return a line of `count` cells for each instance. A column with the same instances as the matrix, the usual case,
    costs least."""
    made, places = bytearray(count * len(found)), {name: at * count for at, name in enumerate(found)}
    whole, before = joined(found), -1
    for column, ids, highest in filled:
        if ids == whole and column != before:
            made[column::count] = highest
        else:
            for name, value in zip(names(ids), highest, strict=True):
                at = places[name] + column
                made[at] = max(made[at], value)
        before = column
    return bytes(made).translate(PERCENT)
