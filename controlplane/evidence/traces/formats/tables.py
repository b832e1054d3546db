"""Tables of lengths as CSV: Azure's LLM inference traces and BurstGPT's, without prefixes.
Azure's tables of 2023 and 2024 have a date in each row; BurstGPT's have seconds, and rows without an answer are
failures.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import replace

from controlplane.evidence.traces.formats import arrivals, fields
from controlplane.evidence.traces.formats.columns import Columns
from controlplane.evidence.traces.types import BadTrace, LoadedTrace, TraceRequest

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURST = ("Timestamp", "Request tokens", "Response tokens")
SESSION = "Session ID"
BLOCK_TOKENS = 64  # nominal size
SLOWEST_S = 600.0  # at night, BurstGPT has a request only every few minutes


def detects_azure(head: str) -> bool:
    return _names(head)[: len(AZURE)] == AZURE


def detects_burst(head: str) -> bool:
    return set(BURST) <= set(_names(head))


def read_azure(lines: Iterable[str], seed: int) -> LoadedTrace:
    """Read Azure's tables; `seed` has no effect, because the arrivals are exact."""
    columns = Columns()
    requests = [_known(row, arrivals.moment(row, AZURE[0]), *AZURE[1:]) for row in _rows(lines, AZURE, columns)]
    return arrivals.loaded(
        "azure", [replace(one, output_tokens=max(1, one.output_tokens)) for one in requests], columns
    )


def read_burst(lines: Iterable[str], seed: int) -> LoadedTrace:
    columns, read_rows = Columns(), 0
    requests: list[TraceRequest] = []
    for row in _rows(lines, BURST, columns):
        read_rows += 1
        number = _number(row, BURST[0])
        one = _known(row, number, *BURST[1:], session=(row.session(0, SESSION) if row.values.get(SESSION) else ""))
        if one.output_tokens:
            requests.append(one)
    requests = arrivals.in_seconds(requests, BURST[0], "s", SLOWEST_S)
    left_out = read_rows - len(requests)
    return arrivals.loaded("burstgpt", arrivals.spread(requests, seed), columns, left_out=left_out)


def _names(head: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in head.partition("\n")[0].split(","))


def _rows(lines: Iterable[str], wanted: tuple[str, ...], columns: Columns) -> Iterator[fields.TraceLine]:
    """Yield the rows of a table by column. Raise BadTrace."""
    reader = csv.reader(lines)
    header = tuple(name.strip() for name in next(reader, []))
    if not set(wanted) <= set(header):
        raise BadTrace(1, "", ",".join(header), f"the columns {','.join(wanted)}")
    columns.given.update(header)
    try:
        for count, row in enumerate(filter(None, reader), start=1):
            if count > fields.MAX_REQUESTS:
                raise BadTrace(reader.line_num, "", count, f"at most {fields.MAX_REQUESTS:,} requests")
            if len(row) < len(header):
                raise BadTrace(reader.line_num, "", ",".join(row), f"the columns {','.join(header)}")
            yield fields.TraceLine(reader.line_num, dict(zip(header, row, strict=False)), columns)
    except csv.Error as error:
        raise BadTrace(reader.line_num, "", str(error), "comma-separated values") from None


def _known(row: fields.TraceLine, at: float, tokens: str, output: str, *, session: str = "") -> TraceRequest:
    return TraceRequest(0, at, session, _count(row, tokens, 1), _count(row, output, 0), (), BLOCK_TOKENS, 0.0)


def _count(row: fields.TraceLine, field: str, low: int) -> int:
    text = row.present(field)
    digits = text.strip()
    value: int | str = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else text
    return fields.TraceLine(row.line, {field: value}, row.columns).integer(field, low)


def _number(row: fields.TraceLine, field: str) -> float:
    text = row.present(field)
    try:
        value: float | str = float(text)
    except ValueError:
        value = text
    return fields.TraceLine(row.line, {field: value}, row.columns).number(field, arrivals.LATEST)
