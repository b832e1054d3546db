"""Reads a few fields of a JSON object that arrives in parts and is too large to keep. Pure."""

import re
from collections.abc import Collection

import orjson

from router.contract.values.json_value import JsonObject

LONGEST = 64 * 1024  # bytes of a value or of an unfinished string; longer ones are skipped
_TOKEN = re.compile(rb'["{}\[\]:,]')
_DEEP_TOKEN = re.compile(rb'["{}\[\]]')  # tokens that matter below the wanted fields
_REST_OF_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*(?:"|(\\?\Z))', re.DOTALL)
QUOTE, COLON = b'":'

Path = tuple[str, ...]


class FieldScan:
    """The wanted fields, by their paths from the outermost object, such as `("usage",)` or `("response", "usage")`.
    Strings are skipped as a whole, so text of the model or the client is never mistaken for a field.
    """

    def __init__(self, wanted: Collection[Path]) -> None:
        self._wanted = frozenset(tuple(name.encode() for name in path) for path in wanted)
        self._deepest = max(map(len, self._wanted))
        self._depth = 0
        self._has_begun = False
        self._keys: list[bytes] = []  # key of each open object or array, down to `_deepest`
        self._string = b""  # the latest string
        self._cut = b""  # beginning of a string cut off by the end of the data
        self._skipping = False  # True while skipping a string longer than LONGEST
        self._value: list[bytes] | None = None  # parts of a wanted value that is being read
        self._value_depth = 0
        self._raw: dict[tuple[bytes, ...], bytes] = {}

    def feed(self, data: bytes) -> None:
        data, self._cut = self._cut + data, b""
        start = 0  # start of a wanted value's bytes
        position = self._skip(data) if self._skipping else 0
        while (match := self._next(data, position)) is not None:
            position = match.end()
            if data[match.start()] == QUOTE:
                rest = _REST_OF_STRING.match(data, position)
                if rest is None or rest[1] is not None:
                    self._cut_off(data, match.start(), start)
                    return
                if self._depth <= self._deepest:
                    self._string = data[position : rest.end() - 1]
                position = rest.end()
            elif self._structure(data[match.start()], data[start : match.start()]):
                start = position
        self._keep(data[start:])

    def fields(self) -> JsonObject:
        """Return the fields whose values are complete, nested as in the object."""
        read: JsonObject = {}
        for path, raw in self._raw.items():
            inner = read
            for key in path[:-1]:
                inner = inner.setdefault(key.decode(), {})  # type: ignore[assignment]  # only this loop writes there
            try:
                inner[path[-1].decode()] = orjson.loads(raw)
            except orjson.JSONDecodeError:
                continue
        return read

    @property
    def is_closed(self) -> bool:
        """Return whether the outermost object has ended."""
        return self._has_begun and self._depth == 0

    def _next(self, data: bytes, position: int) -> re.Match[bytes] | None:
        pattern = _TOKEN if self._depth <= self._deepest else _DEEP_TOKEN
        return pattern.search(data, position)

    def _skip(self, data: bytes) -> int:
        """Return the position after the skipped string."""
        match = _REST_OF_STRING.match(data)
        assert match is not None  # noqa: S101 - an empty match is one
        if match[1] is not None:
            self._cut = match[1]
            return len(data)
        self._skipping = False
        return match.end()

    def _cut_off(self, data: bytes, at: int, start: int) -> None:
        """Keep an unfinished string until more data arrives, unless it is too long."""
        self._keep(data[start:at])
        if len(data) - at <= LONGEST:
            self._cut = data[at:]
            return
        self._skipping, self._string, self._value = True, b"", None
        self._cut = b"\\" if (len(data) - len(data.rstrip(b"\\"))) % 2 else b""

    def _structure(self, token: int, value: bytes) -> bool:
        """Process a brace, bracket, colon or comma. Return True if a wanted value begins after it."""
        if token == COLON:
            return self._depth <= self._deepest and self._begins()
        if token in b"{[":
            self._depth += 1
            self._has_begun = True
            if self._depth <= self._deepest:
                self._keys.append(b"")
            return False
        if self._value is not None and self._depth == self._value_depth:
            self._end_value(value)
        if token in b"}]":
            if self._depth <= self._deepest:
                del self._keys[-1:]
            self._depth -= 1
        return False

    def _begins(self) -> bool:
        """Return whether the latest string is a key with a wanted value."""
        self._keys[-1:] = [self._string]
        wanted = self._value is None and tuple(self._keys) in self._wanted
        if wanted:
            self._value, self._value_depth = [], self._depth
        return wanted

    def _end_value(self, rest: bytes) -> None:
        self._keep(rest)
        if self._value is not None:
            self._raw[tuple(self._keys)] = b"".join(self._value)
        self._value = None

    def _keep(self, data: bytes) -> None:
        if self._value is not None and data:
            self._value.append(data)
            if sum(map(len, self._value)) > LONGEST:
                self._value = None
