"""Azure's LLM inference traces: CSV of arrival, context tokens and generated tokens. No prefix is shared, and neither
the one of 2023 nor that of 2024 tells sessions; columns after the three are named as ignored.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from controlplane.evidence.traces.formats import fields
from controlplane.evidence.traces.formats.columns import Columns
from controlplane.evidence.traces.types import BadTrace, LoadedTrace, TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BLOCK_TOKENS = 64


def detects(head: str) -> bool:
    return [name.strip() for name in head.partition("\n")[0].split(",")][: len(COLUMNS)] == list(COLUMNS)


def read(lines: Iterable[str], seed: int) -> LoadedTrace:
    """`seed` plays no part: the arrivals are exact."""
    columns = Columns()
    rows = list(_rows(lines, columns))
    start = min((at for at, _ in rows), default=0.0)
    ordered = sorted((replace(request, at_s=at - start) for at, request in rows), key=lambda request: request.at_s)
    made = tuple(replace(request, index=i) for i, request in enumerate(ordered))
    return LoadedTrace("azure", made, "timestamps", columns.ignored())


def _rows(lines: Iterable[str], columns: Columns) -> Iterator[tuple[float, TraceRequest]]:
    reader = csv.reader(lines)
    header = tuple(name.strip() for name in next(reader, []))
    if header[: len(COLUMNS)] != COLUMNS:
        raise BadTrace(1, "", ",".join(header), f"the columns {','.join(COLUMNS)}")
    columns.given.update(header[len(COLUMNS) :])
    try:
        for count, row in enumerate(filter(None, reader), start=1):
            if count > fields.MAX_REQUESTS:
                raise BadTrace(reader.line_num, "", count, f"at most {fields.MAX_REQUESTS:,} requests")
            yield _row(row, reader.line_num)
    except csv.Error as error:
        raise BadTrace(reader.line_num, "", str(error), "comma-separated values") from None


def _row(row: list[str], line: int) -> tuple[float, TraceRequest]:
    if len(row) < len(COLUMNS):
        raise BadTrace(line, "", ",".join(row), f"the columns {','.join(COLUMNS)}")
    return _moment(row[0], line), TraceRequest(
        index=0,
        at_s=0.0,
        session="",
        input_tokens=_count(row[1], line, "ContextTokens", 1),
        output_tokens=max(1, _count(row[2], line, "GeneratedTokens", 0)),
        blocks=(),
        block_tokens=BLOCK_TOKENS,
        think_s=0.0,
    )


def _moment(text: str, line: int) -> float:
    """Seconds; a time zone may be given, and is then taken off."""
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=None).toordinal() * 86_400.0 + _of_day(text.strip())
    except ValueError:
        raise BadTrace(line, "TIMESTAMP", text, "a date and time as 2023-11-16 18:17:03.9799600") from None


def _of_day(text: str) -> float:
    time = datetime.fromisoformat(text).time()
    return time.hour * 3600 + time.minute * 60 + time.second + time.microsecond / 1e6


def _count(text: str, line: int, field: str, low: int) -> int:
    digits = text.strip()
    value: int | str = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else text
    return fields.Row(line, {field: value}).integer(field, low)
