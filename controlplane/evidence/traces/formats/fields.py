"""Reads one line of a trace: typed fields with limits; errors name the field."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from controlplane.evidence.traces.formats.columns import Columns
from controlplane.evidence.traces.types import BadTrace

MAX_REQUESTS = 200_000
MAX_LINE_BYTES = 1_000_000
MAX_TOKENS = 4_000_000
MAX_TIME_S = 31_536_000.0  # a year
MAX_BLOCK = 2**40
MAX_RUNS_OF_REQUEST = 4_096  # runs of consecutive blocks; real prompts have a few
MAX_RUNS = 1_000_000  # runs per trace
MAX_TEXT = 500
MAX_NUMBER = 2**31 - 1
WHOLE = re.compile(r"\d{1,18}(?:\.0{0,9})?", re.ASCII)
DECIMAL = re.compile(r"[+-]?\d{1,30}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TraceLine:
    """A line; each method reads one field. Raise BadTrace."""

    line: int
    values: dict[str, Any]
    columns: Columns = field(default_factory=Columns)  # columns of the file

    def refused(self, field: str, value: object, allowed: str) -> BadTrace:
        return BadTrace(self.line, field, value, allowed)

    def present(self, field: str) -> Any:
        self.columns.read.add(field)
        if field not in self.values:
            raise self.refused(field, None, "the field is missing")
        return self.values[field]

    def integer(self, field: str, low: int, high: int = MAX_TOKENS) -> int:
        """Return a whole number, which tables and exports also write as 472.0 or as text."""
        given = self.present(field)
        value = _whole(given)
        if type(value) is not int or not low <= value <= high:
            raise self.refused(field, given, f"a whole number from {low:,} to {high:,}")
        return value

    def integers(self, field: str, value: Any, low: int, high: int) -> list[int]:
        """Return whole numbers. `value`: the field, or a part of it."""
        if not isinstance(value, list) or not all(type(item) is int and low <= item <= high for item in value):
            raise self.refused(field, value, f"a list of whole numbers from {low:,} to {high:,}")
        return value

    def number(self, field: str, high: float, noun: str = "a number") -> float:
        given = self.present(field)
        value = float(given) if isinstance(given, str) and DECIMAL.fullmatch(given.strip()) else given
        if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= high:
            raise self.refused(field, given, f"{noun} from 0 to {high:,.0f}")
        return float(value)

    def seconds(self, field: str, *, per_second: float = 1.0) -> float:
        """Return a time from 0 to a year, in seconds; `per_second` is the number of the field's units in a second."""
        return self.number(field, MAX_TIME_S * per_second) / per_second

    def milliseconds(self, field: str) -> float | None:
        return None if self.values.get(field) is None else self.seconds(field, per_second=1000.0) * 1000

    def text(self, field: str) -> str:
        """Return a text; empty if it is missing."""
        self.columns.read.add(field)
        value = self.values.get(field, "")
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise self.refused(field, value, f"up to {MAX_TEXT} characters")
        return value

    def session(self, least: int, field: str = "session") -> str:
        name = self.present(field)
        # the text is sent in a header
        if not isinstance(name, str) or not least <= len(name) <= 100 or not (name.isascii() and name.isprintable()):
            raise self.refused(field, name, f"{'1' if least else 'up'} to 100 printable ASCII characters")
        return name

    def check_blocks(self, field: str, blocks: int, input_tokens: int, block_tokens: int) -> None:
        """Check that there are as many blocks as the prompt fills, with or without a partial last block."""
        whole, all_of_it = input_tokens // block_tokens, -(-input_tokens // block_tokens)
        if not whole <= blocks <= all_of_it:
            allowed = f"{whole:,} or {all_of_it:,} blocks of {block_tokens} tokens for {input_tokens:,} input tokens"
            raise self.refused(field, blocks, allowed)


def _whole(given: Any) -> Any:
    if isinstance(given, str) and WHOLE.fullmatch(given.strip()):
        return int(given.strip().partition(".")[0])
    return int(given) if type(given) is float and given.is_integer() else given


def json_rows(lines: Iterable[str], columns: Columns) -> Iterator[TraceLine]:
    """Yield the JSON object of every non-blank line, and add its fields to `columns`."""
    read = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        read += 1
        if read > MAX_REQUESTS:
            raise BadTrace(number, "", read, f"at most {MAX_REQUESTS:,} requests")
        row = json_row(number, line, columns)
        columns.add(row.values)
        yield row


def json_row(number: int, line: str, columns: Columns) -> TraceLine:
    if len(line) > MAX_LINE_BYTES:
        raise BadTrace(number, "", line[:20], f"at most {MAX_LINE_BYTES:,} bytes in a line")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise BadTrace(number, "", line.strip(), "one JSON object per line") from None
    if not isinstance(value, dict):
        raise BadTrace(number, "", value, "one JSON object per line")
    return TraceLine(number, value, columns)


def runs_of(ids: list[int]) -> tuple[range, ...]:
    """Return consecutive ids as ranges: [3, 4, 5, 9] → (range(3, 6), range(9, 10))."""
    runs: list[range] = []
    for number in ids:
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return tuple(runs)


class RunBounds:
    """Limits the runs of a trace's requests, because computing with them takes time per run."""

    def __init__(self) -> None:
        self._runs = 0

    def check(self, row: TraceLine, field: str, blocks: tuple[range, ...]) -> tuple[range, ...]:
        self._runs += len(blocks)
        if len(blocks) > MAX_RUNS_OF_REQUEST:
            raise row.refused(field, f"{len(blocks):,} runs", f"at most {MAX_RUNS_OF_REQUEST:,} runs of blocks")
        if self._runs > MAX_RUNS:
            raise row.refused(field, f"{self._runs:,} runs", f"at most {MAX_RUNS:,} runs of blocks in a trace")
        return blocks
