"""Tables of lengths as CSV: Azure's LLM inference traces and BurstGPT's, without prefixes.
Azure's tables of 2023 and 2024 have a date in each row; BurstGPT's have seconds, and rows without an answer are
failures.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from controlplane.evidence.traces.formats import arrivals, fields
from controlplane.evidence.traces.formats.columns import Columns
from controlplane.evidence.traces.types import BadTrace, LoadedTrace, TraceRequest

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURST = ("Timestamp", "Request tokens", "Response tokens")
SESSION = "Session ID"
BLOCK_TOKENS = 64  # nominal size
DELIMITERS = ",;\t"
LONGEST_HEADER = 65_536
csv.field_size_limit(fields.MAX_LINE_BYTES)
SLOWEST_S = 600.0  # at night, BurstGPT has a request only every few minutes


def detects_azure(head: str) -> bool:
    return set(AZURE) <= set(names_of(head))


def detects_burst(head: str) -> bool:
    return set(BURST) <= set(names_of(head))


def read_azure(lines: Iterable[str], seed: int) -> LoadedTrace:
    """Read Azure's tables; `seed` has no effect, because the arrivals are exact."""
    columns = Columns()
    requests = [_known(row, arrivals.moment(row, AZURE[0]), *AZURE[1:]) for row in rows(lines, AZURE, columns)]
    return arrivals.loaded(
        "azure", [replace(one, output_tokens=max(1, one.output_tokens)) for one in requests], columns
    )


def read_burst(lines: Iterable[str], seed: int) -> LoadedTrace:
    columns, read_rows = Columns(), 0
    requests: list[TraceRequest] = []
    for row in rows(lines, BURST, columns):
        read_rows += 1
        number = row.number(BURST[0], arrivals.LATEST)
        one = _known(row, number, *BURST[1:], session=(row.session(0, SESSION) if row.values.get(SESSION) else ""))
        if one.output_tokens:
            requests.append(one)
    requests = arrivals.in_seconds(requests, BURST[0], "s", SLOWEST_S)
    left_out = read_rows - len(requests)
    return arrivals.loaded("burstgpt", arrivals.spread(requests, seed), columns, left_out=left_out)


def names_of(head: str) -> tuple[str, ...]:
    """Return the names in a table's first line; empty if it cannot be one."""
    first = head[:LONGEST_HEADER].partition("\n")[0]
    try:
        return _header(next(csv.reader([first], delimiter=_delimiter(first)), []))
    except csv.Error:
        return ()


def _header(row: list[str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in row)


def _delimiter(header: str) -> str:
    return max(DELIMITERS, key=header.count)


def rows(lines: Iterable[str], wanted: tuple[str, ...], columns: Columns) -> Iterator[fields.TraceLine]:
    """Yield the rows of a table by column. Raise BadTrace."""
    left = iter(lines)
    first = next(left, "")
    reader = csv.reader(chain([first], left), delimiter=_delimiter(first))
    try:
        header = _header(next(reader, []))
        if not set(wanted) <= set(header):
            raise BadTrace(1, "", ",".join(header), f"the columns {','.join(wanted)}")
        columns.given.update(header)
        for count, row in enumerate(filter(None, reader), start=1):
            if count > fields.MAX_REQUESTS:
                raise BadTrace(reader.line_num, "", count, f"at most {fields.MAX_REQUESTS:,} requests")
            if len(row) < len(header):
                raise BadTrace(reader.line_num, "", ",".join(row), f"the columns {','.join(header)}")
            yield fields.TraceLine(reader.line_num, dict(zip(header, row, strict=False)), columns)
    except csv.Error as error:
        raise BadTrace(reader.line_num, "", str(error), "comma-separated values") from None


def _known(row: fields.TraceLine, at: float, tokens: str, output: str, *, session: str = "") -> TraceRequest:
    return TraceRequest(0, at, session, row.integer(tokens, 1), row.integer(output, 0), (), BLOCK_TOKENS, 0.0)
