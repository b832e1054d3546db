"""Reading one line of a trace: typed fields with limits, refused by name."""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from controlplane.traces.types import BadTrace

MAX_REQUESTS = 200_000
MAX_LINE_BYTES = 1_000_000
MAX_TOKENS = 4_000_000
MAX_TIME_S = 31_536_000.0  # a year
MAX_BLOCK = 2**40
MAX_RUNS_OF_REQUEST = 4_096  # runs of consecutive blocks; real prompts have a few
MAX_RUNS = 1_000_000  # of a trace
MAX_TEXT = 500
MAX_NUMBER = 2**31 - 1


def json_lines(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is not blank."""
    read = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        read += 1
        if read > MAX_REQUESTS:
            raise BadTrace(number, "", read, f"at most {MAX_REQUESTS:,} requests")
        yield number, _object(number, line)


def _object(number: int, line: str) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise BadTrace(number, "", line[:20], f"at most {MAX_LINE_BYTES:,} bytes in a line")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise BadTrace(number, "", line.strip(), "one JSON object per line") from None
    if not isinstance(value, dict):
        raise BadTrace(number, "", value, "one JSON object per line")
    return value


def present(row: dict[str, Any], line: int, field: str) -> Any:
    if field not in row:
        raise BadTrace(line, field, None, "the field is missing")
    return row[field]


def integer(row: dict[str, Any], line: int, field: str, low: int, high: int = MAX_TOKENS) -> int:
    value = present(row, line, field)
    if type(value) is not int or not low <= value <= high:
        raise BadTrace(line, field, value, f"a whole number from {low:,} to {high:,}")
    return value


def seconds(row: dict[str, Any], line: int, field: str, *, per_second: float = 1.0, optional: bool = False) -> float:
    """A time from 0 to a year, in seconds; `per_second` is how many of the field's units make one."""
    if optional and row.get(field) is None:
        return 0.0
    value = present(row, line, field)
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= MAX_TIME_S * per_second:
        raise BadTrace(line, field, value, f"a number from 0 to {MAX_TIME_S * per_second:,.0f}")
    return float(value) / per_second


def text(row: dict[str, Any], line: int, field: str) -> str:
    """Empty when it is not there."""
    value = row.get(field, "")
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise BadTrace(line, field, value, f"up to {MAX_TEXT} characters")
    return value


def milliseconds(row: dict[str, Any], line: int, field: str) -> float | None:
    return None if row.get(field) is None else seconds(row, line, field, per_second=1000.0) * 1000


def integers(value: Any, line: int, field: str, low: int, high: int) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int and low <= item <= high for item in value):
        raise BadTrace(line, field, value, f"a list of whole numbers from {low:,} to {high:,}")
    return value


def runs_of(ids: list[int]) -> tuple[range, ...]:
    """Consecutive ids as ranges: [3, 4, 5, 9] → (range(3, 6), range(9, 10))."""
    runs: list[range] = []
    for number in ids:
        if runs and runs[-1].stop == number:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return tuple(runs)


class RunBounds:
    """Of the requests of one trace: what is computed from it takes time per run."""

    def __init__(self) -> None:
        self._runs = 0

    def check(self, line: int, field: str, blocks: tuple[range, ...]) -> tuple[range, ...]:
        self._runs += len(blocks)
        if len(blocks) > MAX_RUNS_OF_REQUEST:
            raise BadTrace(line, field, f"{len(blocks):,} runs", f"at most {MAX_RUNS_OF_REQUEST:,} runs of blocks")
        if self._runs > MAX_RUNS:
            raise BadTrace(line, field, f"{self._runs:,} runs", f"at most {MAX_RUNS:,} runs of blocks in a trace")
        return blocks


def check_blocks(line: int, field: str, blocks: int, input_tokens: int, block_tokens: int) -> None:
    """As many blocks as the prompt fills, with or without the last one that it fills in part."""
    whole, all_of_it = input_tokens // block_tokens, -(-input_tokens // block_tokens)
    if not whole <= blocks <= all_of_it:
        allowed = f"{whole:,} or {all_of_it:,} blocks of {block_tokens} tokens for {input_tokens:,} input tokens"
        raise BadTrace(line, field, blocks, allowed)
