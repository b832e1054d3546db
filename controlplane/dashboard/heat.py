"""KV usage of each instance over time as one matrix of bytes, made once for all viewers. Pure."""

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypedDict

from controlplane.dashboard.frame.types import HistoryRow

COLUMNS = 150  # of the heat map over any range
ROWS_PER_COLUMN = 4  # frames looked at: a bin of an hour has 24
NO_DATA = 255

KvUsage = Mapping[str, float | None]  # by instance, 0–1


Heat = TypedDict("Heat", {"from": int, "bin_s": int, "columns": int, "ids": list[str], "cells": str})  # cells: base64


def cells(rows: Sequence[HistoryRow], end: float, seconds: int) -> Heat:
    """`rows` oldest first. A cell is the highest KV usage seen in its bin in percent; NO_DATA without a sample."""
    width = max(1, math.ceil(seconds / COLUMNS))
    last = math.floor(end / width)
    first = last - math.ceil(seconds / width) + 1
    count = last - first + 1
    lines: dict[str, bytearray] = {}
    binned = groupby(_thinned(rows, width), lambda row: math.floor(row["at"] / width) - first)
    for column, group in binned:
        if 0 <= column < count:
            for kv in _highest(row["kv"] for row in group):
                _fill(lines, kv, column, count)
    return {
        "from": first * width,
        "bin_s": width,
        "columns": count,
        "ids": list(lines),
        "cells": base64.b64encode(b"".join(lines.values())).decode(),
    }


def _thinned(rows: Sequence[HistoryRow], width: int) -> Sequence[HistoryRow]:
    """One row a second is more than a wide bin needs; the newest stays."""
    if len(rows) < 2:
        return rows
    every = (rows[-1]["at"] - rows[0]["at"]) / (len(rows) - 1) or 1.0
    step = max(1, math.floor(width / every / ROWS_PER_COLUMN))
    return rows[::-step][::-1]


def _highest(rows: Iterable[KvUsage]) -> Iterator[KvUsage]:
    """The highest of consecutive rows with the same instances, in one: of many instances much the cheapest way."""
    for names, group in groupby(rows, list):
        first, *others = ([-math.inf if usage is None else usage for usage in kv.values()] for kv in group)
        highest = list(map(max, first, *others)) if others else first
        yield {name: None if usage == -math.inf else usage for name, usage in zip(names, highest, strict=True)}


def _fill(lines: dict[str, bytearray], kv: KvUsage, column: int, count: int) -> None:
    for name, usage in kv.items():
        line = lines.get(name)
        if line is None:
            line = lines[name] = bytearray([NO_DATA]) * count
        if usage is not None:
            percent = min(100, max(0, round(usage * 100)))
            line[column] = percent if line[column] == NO_DATA else max(line[column], percent)
