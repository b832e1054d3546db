"""Bounds of a JSON body, checked before it is parsed: the parser makes an object of each value while no other thread
runs. Pure.
"""

import re
from collections.abc import Iterator

MAX_VALUES = 1_000_000  # values of any kind: each token id is one
MAX_CONTAINERS = 100_000  # objects and arrays
SMALL = 128 * 1024  # bytes; too few to reach either by much

_WINDOW = 64 * 1024  # bytes looked at before other threads may run
_OTHERS = bytes(set(range(256)) - set(b"[{,"))
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_WHOLE = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)  # strings, and what is between them
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)  # a string


def exceeded(body: bytes) -> str:
    """The bound that the body exceeds; empty when it exceeds none."""
    # Commas and brackets are first counted in strings too, which is quick and mostly enough.
    if len(body) <= SMALL or not _too_many(body[start : start + _WINDOW] for start in range(0, len(body), _WINDOW)):
        return ""
    if not _too_many(_outside_strings(body)):
        return ""
    return f"the body may have at most {MAX_VALUES:,} values and {MAX_CONTAINERS:,} objects and arrays"


def _too_many(parts: Iterator[bytes]) -> bool:
    values = containers = 0
    for part in parts:
        signs = part.translate(None, _OTHERS)
        values += len(signs)
        containers += len(signs) - signs.count(b",")
        if values > MAX_VALUES or containers > MAX_CONTAINERS:
            return True
    return False


def _outside_strings(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        end = _end(_WHOLE, body, at)
        yield _STRING.sub(b"", body[at:end])
        at = _after_string(body, end + 1) if body[end : end + 1] == b'"' else end


def _after_string(body: bytes, at: int) -> int:
    """The position after a string that is longer than a window."""
    while at < len(body):
        end = _end(_INSIDE, body, at)
        if end == at or body[end : end + 1] == b'"':  # no progress: its last escape has no end
            return end + 1
        at = end
    return at


def _end(pattern: re.Pattern[bytes], body: bytes, at: int) -> int:
    found = pattern.match(body, at, at + _WINDOW)
    return found.end() if found is not None else at
