"""The parts of an answer that show how it ended: last events, usage, fields of large events. Pure."""

import re
from collections import deque
from collections.abc import Callable

import msgspec

from router.contract.answer import answers
from router.contract.answer.said import AnswerError, Ended, Said
from router.contract.values.json_value import JsonObject
from router.contract.values.reading import reader
from router.upstream.answer.field_scan import FieldScan
from router.upstream.answer.usage import BLANKS, USAGE, end_of_events

PARTS = 16  # parts kept at the end of a stream; each holds whole events
LARGEST_EVENT = 256 * 1024  # bytes; only some fields of larger events are read
TRIES = 16  # events searched for a usage, last first, and parts kept for that
NUMBER = b'"sequence_number"'
_DIGITS = re.compile(rb"\s*:\s*([0-9]{1,9})")
_FIELDS = (
    *(("type",), ("usage",), ("error",), ("status",), ("object",)),
    *(("response", "usage"), ("response", "status"), ("response", "error"), ("message", "usage")),
)
_OF_CHOICE = (("choices", "", "finish_reason"), ("choices", "", "error"))  # fields of the last choice
UNFINISHED = "the answer ended within its JSON"
_said = reader(Said)


class WholeTail:
    """Fields of an answer that is not streamed and is too large to keep. Without `is_json`, there are none.
    `background` is True if the answer may be generated later."""

    def __init__(self, *, is_json: bool = True, background: bool = False) -> None:
        self._scan = FieldScan((*_FIELDS, *_OF_CHOICE))
        self._is_json = is_json
        self._background = background

    def add(self, data: bytes) -> None:
        if self._is_json:
            self._scan.feed(data)

    def ended(self) -> Ended:
        if not self._is_json:
            return Ended(is_whole=True)
        fields = self._scan.fields()
        if isinstance(choices := fields.get("choices"), dict):
            fields["choices"] = list(choices.values())
        event = _from_fields(fields)
        error = answers.error_of(event) or (None if self._background else answers.unfinished(event))
        error = error or (None if self._scan.is_closed else AnswerError(UNFINISHED))
        return Ended(error, is_whole=True, usage=answers.usage_of(event))


class StreamTail:
    """The tail of a stream. With `reports_twice`, the API also reports usage at the beginning. With `several`, the
    stream has several answers, and one may be abandoned while the others continue."""

    def __init__(self, *, reports_twice: bool = False, several: bool = False) -> None:
        self._reports_twice = reports_twice
        self._parts: deque[bytes] = deque(maxlen=PARTS)
        # Receives whole events, except comments and usage chunks
        self.add_event: Callable[[bytes], None] = self._keep if several else self._parts.append
        self._given_up: AnswerError | None = None
        self._first_usage = b""  # part
        self._usages: deque[bytes] = deque(maxlen=TRIES)  # last parts that name a usage, perhaps one within a field
        self._open: list[bytes] = []  # parts of an unfinished event
        self._open_size = 0
        self._scan: FieldScan | None = None  # reader of an unfinished event that is too large
        self._large: Said | None = None  # latest of the events that were too large

    def add(self, data: bytes) -> None:
        if not self._open and data.endswith(b"\n\n"):
            self._add_whole(data)
            return
        end = self._boundary(data)
        if end:
            self._close(data[:end])
        if end < len(data):
            self._hold(data[end:])

    def ended(self) -> Ended:
        """Return the final state of the stream; call it once, at its end."""
        if self._open:
            self._close(b"\n\n")
        ending = answers.ending(b"".join(self._parts))
        large, error = self._large, ending.error or self._given_up
        usage, first = ending.usage or _last_usage(b"".join(self._usages)), None
        if self._reports_twice:
            first = _first_usage(self._first_usage)
        if large is None:
            return Ended(error, ending.is_whole, ending.finishes, usage, first)
        whole = ending.is_whole or answers.sign_of(large) == "end"
        usage = answers.usage_of(large) or usage
        return Ended(error or answers.error_of(large), whole, ending.finishes, usage, first)

    def next_number(self) -> int:
        """Return the `sequence_number` of the next event; 0 if events have none."""
        parts = b"".join(self._parts)
        key = parts.rfind(NUMBER)
        number = _DIGITS.match(parts, key + len(NUMBER)) if key >= 0 else None
        return int(number[1]) + 1 if number is not None else 0

    def _boundary(self, data: bytes) -> int:
        """Return the position after the last blank line, or 0."""
        end = end_of_events(data, len(data))
        if end or not self._open:
            return end
        before = self._open[-1][-3:]
        for blank in BLANKS:
            at = (before + data[:3]).find(blank)
            if at >= 0:
                return at + len(blank) - len(before)
        return 0

    def _hold(self, data: bytes) -> None:
        self._open.append(data)
        self._open_size += len(data)
        if self._scan is not None:
            self._scan.feed(data)
            self._open = [(self._open[-1] + data[-3:])[-3:]]
        elif self._open_size > LARGEST_EVENT:
            self._scan = FieldScan(_FIELDS)
            held = b"".join(self._open)
            self._scan.feed(held[held.find(b"data:") + 5 :])
            self._open = [held[-3:]]

    def _close(self, rest: bytes) -> None:
        """Close the unfinished event with `rest`, which may hold further events."""
        if self._scan is None:
            held = b"".join((*self._open, rest))
            self._open, self._open_size = [], 0
            self._add_whole(held)
            return
        before = self._open[-1][-3:]  # the blank line may have begun in that part
        joined = before + rest
        end, behind = _blank_line(joined)
        self._scan.feed(joined[len(before) : end])
        self._large, self._scan = _from_fields(self._scan.fields()), None
        self._open, self._open_size = [], 0
        self._add_whole(joined[behind:])

    def _add_whole(self, data: bytes) -> None:
        # Comments would displace the events before them
        if data.find(b"data:") < 0 and data.find(b"error") < 0:
            return
        self.add_event(data)
        if data.rfind(USAGE) >= 0:
            self._usages.append(data)
            self._first_usage = self._first_usage or data

    def _keep(self, data: bytes) -> None:
        self._parts.append(data)
        self._given_up = self._given_up or answers.given_up(data)


def _blank_line(data: bytes, start: int = 0) -> tuple[int, int]:
    """Return (start, end) of the first blank line from `start` on; the data's end twice if there is none."""
    ends = [(at, at + len(blank)) for blank in BLANKS if (at := data.find(blank, start)) >= 0]
    return min(ends, default=(len(data), len(data)))


def _last_usage(parts: bytes) -> JsonObject | None:
    """Return the last usage of an event in the parts."""
    end = len(parts)
    for _ in range(TRIES):
        key = parts.rfind(USAGE, 0, end)
        if key < 0:
            return None
        start = end_of_events(parts, key)
        if (usage := _usage_at(parts, start, key)) is not None:
            return usage
        end = start
    return None


def _first_usage(part: bytes) -> JsonObject | None:
    """Return the first usage of an event in the part."""
    key = part.find(USAGE)
    if key < 0:
        return None
    return _usage_at(part, end_of_events(part, key), key)


def _usage_at(part: bytes, start: int, key: int) -> JsonObject | None:
    """Return the usage of the event that starts at `start`, with its key at `key`."""
    end, _ = _blank_line(part, key)
    event = answers.said(answers.payload(part[start:end].lstrip()))
    return answers.usage_of(event) if event is not None else None


def _from_fields(fields: JsonObject) -> Said:
    try:
        return _said(fields)
    except msgspec.ValidationError:
        return Said()
