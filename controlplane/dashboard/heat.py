"""KV usage of each instance over time as one matrix of bytes, made once for all viewers. Pure."""

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import TypedDict

from controlplane.dashboard.frame.types import HistoryRow

COLUMNS = 150  # of the heat map over any range
ROWS_PER_COLUMN = 4  # frames looked at: a bin of an hour has 24
NO_DATA = 255
UNKNOWN = -math.inf

KvUsage = Mapping[str, float | None]  # by instance, 0–1


Heat = TypedDict("Heat", {"from": int, "bin_s": int, "columns": int, "ids": list[str], "cells": str})  # cells: base64


def cells(rows: Sequence[HistoryRow], end: float, seconds: int) -> Heat:
    """`rows` oldest first. A cell is the highest KV usage seen in its bin in percent; NO_DATA without a sample."""
    width = max(1, math.ceil(seconds / COLUMNS))
    last = math.floor(end / width)
    first = last - math.ceil(seconds / width) + 1
    count = last - first + 1
    filled = [
        (column, names, values)
        for column, group in groupby(_thinned(rows, width), lambda row: math.floor(row["at"] / width) - first)
        if 0 <= column < count
        for names, values in _highest(row["kv"] for row in group)
    ]
    ids = list(dict.fromkeys(chain.from_iterable(_distinct(names for _, names, _ in filled))))
    return {
        "from": first * width,
        "bin_s": width,
        "columns": count,
        "ids": ids,
        "cells": base64.b64encode(_matrix(ids, count, filled)).decode(),
    }


def _thinned(rows: Sequence[HistoryRow], width: int) -> Sequence[HistoryRow]:
    """One row a second is more than a wide bin needs; the newest stays."""
    if len(rows) < 2:
        return rows
    every = (rows[-1]["at"] - rows[0]["at"]) / (len(rows) - 1) or 1.0
    step = max(1, math.floor(width / every / ROWS_PER_COLUMN))
    return rows[::-step][::-1]


def _highest(rows: Iterable[KvUsage]) -> Iterator[tuple[list[str], list[int]]]:
    """The highest of consecutive rows with the same instances, in percent: of many instances much the cheapest way."""
    for names, group in groupby(rows, list):
        columns = [_numbers(list(kv.values())) for kv in group]
        yield names, _percents(list(map(max, *columns)) if len(columns) > 1 else columns[0])


def _numbers(column: list[float | None]) -> list[float]:
    return [UNKNOWN if usage is None else usage for usage in column] if None in column else column  # type: ignore[return-value]


def _percents(column: Sequence[float]) -> list[int]:
    if column and (min(column) < 0 or max(column) > 1):
        return [NO_DATA if usage == UNKNOWN else int(min(1, max(0, usage)) * 100 + 0.5) for usage in column]
    return [int(usage * 100 + 0.5) for usage in column]


def _distinct(several: Iterable[list[str]]) -> Iterator[list[str]]:
    """Without those equal to the one before."""
    return (names for names, _ in groupby(several))


def _matrix(ids: list[str], count: int, filled: Iterable[tuple[int, list[str], list[int]]]) -> bytearray:
    """A line of `count` cells for each id. A column with the same instances as the matrix, as usual, costs least."""
    made, places = bytearray([NO_DATA]) * (count * len(ids)), {name: at * count for at, name in enumerate(ids)}
    before = -1
    for column, names, values in filled:
        if names == ids and column != before:
            made[column::count] = bytes(values)
        else:
            for name, value in zip(names, values, strict=True):
                at = places[name] + column
                if value != NO_DATA:
                    made[at] = value if made[at] == NO_DATA else max(made[at], value)
        before = column
    return made
