"""The last hours for charts: one small row per frame, one per COARSE_S for longer ranges, thinned to a chart's
resolution. Pure.
A gap between frames becomes a row without values, which breaks the line.
"""

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import TypedDict

from controlplane.live.dashboard.frame.types import (
    ALL_POOLS,
    LATENCIES,
    PERCENTILES,
    ClassWindow,
    Columns,
    Frame,
    HistoryRow,
    KeptClasses,
)
from controlplane.live.dashboard.kept_row import STEPS, joined, kv_bytes, kv_usage, names
from router.contract.redis.staleness import FRAME_GAP_S, SAMPLE_STALE_S

POINTS = 300  # points per line, a chart's resolution
SPARK_S = 60
RANGES_S = (300, 900, 3600, 21_600)
COARSE_S = 15  # interval of the rows kept for the longest range
FIRST_COUNTS = ("n", "rate", "errors", "refused")
LATER_COUNTS = ("client_errors",)  # fields added after the percentiles; rows of earlier releases end before them
COUNTS = (*FIRST_COUNTS, *LATER_COUNTS)
PERCENTILE_KEYS = tuple(f"{latency.key}_{name}" for latency in LATENCIES for name in PERCENTILES)
CLASS_KEYS = (*FIRST_COUNTS, *PERCENTILE_KEYS, *LATER_COUNTS)


# The KV usage of each instance over time as one matrix of bytes, built once for all viewers
COLUMNS = 150  # columns of the heat map over any range
ROWS_PER_COLUMN = 4  # frames read per column; a bin of an hour has 24
NO_DATA = 255
PERCENT = bytes([NO_DATA, *(int(100 * step / STEPS + 0.5) for step in range(256 - 1))])  # percentage by stored byte

Heat = TypedDict("Heat", {"from": int, "bin_s": int, "columns": int, "ids": list[str], "cells": str})  # cells: base64


def cells(rows: Sequence[HistoryRow], end: float, seconds: int) -> Heat:
    """Return the cells. `rows` are oldest first. A cell is the highest KV usage in its bin, in percent; NO_DATA without
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
    """Thin out the rows, because a wide bin does not need a row per second; the newest row is kept."""
    if len(rows) < 2:
        return rows
    every = (rows[-1]["at"] - rows[0]["at"]) / (len(rows) - 1) or 1.0
    step = max(1, math.floor(width / every / ROWS_PER_COLUMN))
    return rows[::-step][::-1]


def _highest(rows: Iterable[HistoryRow]) -> Iterator[tuple[str, bytes]]:
    """Yield the maximum over consecutive rows with the same instances, which is the cheapest way if there are many
    instances."""
    for ids, group in groupby(rows, lambda row: row["ids"]):
        first, *others = [row["kv"] for row in group]
        yield ids, bytes(map(max, first, *others)) if others else first


def _matrix(found: list[str], count: int, filled: Iterable[tuple[int, str, bytes]]) -> bytes:
    """Return a row of `count` cells for each instance. A column with the same instances as the matrix, the usual case,
    is the cheapest."""
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


class FrameHistory(TypedDict):
    """Rows converted to columns."""

    bin_s: int
    gap_s: float
    seconds: int
    at: list[float]
    classes: dict[str, dict[str, dict[str, list[float | None]]]]  # by pool, class and CLASS_KEYS


class KeptHistory(FrameHistory):
    kv: dict[str, list[float | None]]  # last minute, by instance


class ChartedHistory(FrameHistory):
    heat: Heat


def row(frame: Frame) -> HistoryRow:
    """Return the values of a frame that are stored."""
    columns = frame["instances"]
    return {
        "at": frame["at"],
        "classes": {
            pool: {name: _figures(window) for name, window in classes.items() if window is not None}
            for pool, classes in frame["classes"].items()
        },
        "ids": joined(columns["id"]),
        "kv": kv_bytes(_fresh(columns, "kv")),
        "loads": {
            "running": _fresh(columns, "running"),
            "waiting": _fresh(columns, "waiting"),
            "hits": _fresh(columns, "hit_rate"),
        },
    }


def _fresh(columns: Columns, name: str) -> list[float | None]:
    """Return the values, leaving out those of stale samples."""
    seen = zip(columns[name], columns["age_s"], strict=True)
    return [value if age_s is not None and age_s <= SAMPLE_STALE_S else None for value, age_s in seen]


def _figures(window: ClassWindow) -> list[float | None]:
    measured = (value for latency in LATENCIES for value in window[latency.key])
    return [window["n"], window["rate"], window["errors"], window["refused"], *measured, window["client_errors"]]


def bin_seconds(seconds: int) -> int:
    """Return the seconds covered by one point of a chart over `seconds`."""
    return max(1, math.ceil(seconds / POINTS))


def columns(rows: Sequence[HistoryRow], now: float, seconds: int) -> KeptHistory:
    """Return rows (oldest first) as columns over the `seconds` before `now`; each bin shows its last row."""
    return {**_columns(rows, now, seconds), "kv": _sparks(rows, now)}


def charted(rows: Sequence[HistoryRow], now: float, seconds: int) -> ChartedHistory:
    """Return the columns drawn by Live and the wall."""
    return {**_columns(rows, now, seconds), "heat": cells(rows, now, seconds)}


def _columns(rows: Sequence[HistoryRow], now: float, seconds: int) -> FrameHistory:
    """Return the columns. Percentiles already cover a sliding minute, so a bin's last row represents the rows left
    out."""
    binned = points(rows, now, seconds)
    chosen = [item for _, item in binned]
    pools = _keys(_with_sum(item["classes"]) for item in chosen if item)
    return {
        "bin_s": bin_seconds(seconds),
        "gap_s": FRAME_GAP_S,
        "seconds": seconds,
        "at": [at for at, _ in binned],
        "classes": {pool: pool_columns(chosen, pool) for pool in pools},
    }


def points(rows: Sequence[HistoryRow], now: float, seconds: int) -> list[tuple[float, HistoryRow | None]]:
    """Return (time, row) of each bin with a row in the `seconds` before `now`, and None in gaps."""
    width = bin_seconds(seconds)
    return _broken({math.floor(item["at"] / width): item for item in rows if item["at"] > now - seconds}, width)


def _broken(bins: Mapping[int, HistoryRow], width: int) -> list[tuple[float, HistoryRow | None]]:
    """Return bins as (time, row), with an empty row in gaps of more than FRAME_GAP_S and more than one bin."""
    found: list[tuple[float, HistoryRow | None]] = []
    before: int | None = None
    for index in sorted(bins):
        if before is not None and index - before > 1 and (index - before) * width > FRAME_GAP_S:
            found.append(((before + 1) * width, None))
        found.append((index * width, bins[index]))
        before = index
    return found


def _with_sum(classes: KeptClasses) -> KeptClasses:
    """Add the sums over all pools for times with only one pool."""
    return {ALL_POOLS: next(iter(classes.values())), **classes} if len(classes) == 1 else classes


def pool_columns(chosen: Sequence[HistoryRow | None], pool: str) -> dict[str, dict[str, list[float | None]]]:
    classes = [_with_sum(item["classes"]).get(pool, {}) if item else {} for item in chosen]
    empty = [None] * len(CLASS_KEYS)
    result: dict[str, dict[str, list[float | None]]] = {}
    for name in _keys(classes):
        figures = [windows.get(name, empty) for windows in classes]
        # rows of an earlier release may have fewer columns
        result[name] = {
            key: [point[i] if i < len(point) else None for point in figures] for i, key in enumerate(CLASS_KEYS)
        }
    return result


def _sparks(rows: Sequence[HistoryRow], now: float) -> dict[str, list[float | None]]:
    """Return the KV usage of each instance, second by second, over the last minute."""
    end = math.floor(now)
    by_second = {math.floor(item["at"]): _by_name(item) for item in rows if item["at"] > now - SPARK_S - 1}
    seconds = range(end - SPARK_S + 1, end + 1)
    shown = [_near(by_second, second) for second in seconds]
    return {name: [kv.get(name) for kv in shown] for name in _keys(by_second.values())}


def _by_name(row: HistoryRow) -> dict[str, float | None]:
    return dict(zip(names(row["ids"]), map(kv_usage, row["kv"]), strict=True))


def _near(by_second: Mapping[int, Mapping[str, float | None]], second: int) -> Mapping[str, float | None]:
    """Return the row of this second or of the previous one, so that a slightly late frame leaves no gap."""
    return next((by_second[at] for at in range(second, second - math.floor(FRAME_GAP_S), -1) if at in by_second), {})


def _keys(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))
