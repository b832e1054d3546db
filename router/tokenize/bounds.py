"""Limits of a JSON body, checked before parsing: the parser creates an object for each value while no other thread
runs. Pure."""

import re
from collections.abc import Iterator

MAX_VALUES = 1_000_000  # values of any kind, including each token id
MAX_CONTAINERS = 100_000  # objects and arrays
FEW = 1_000  # brackets of one kind that are searched for one by one; twice this number is within the limit
SMALL = 128 * 1024  # bytes; smaller bodies cannot exceed either limit by much

_WINDOW = 64 * 1024  # bytes scanned before other threads may run
_OTHERS = bytes(set(range(256)) - set(b"[{,"))
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_WHOLE = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)  # strings, and the text between them
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)  # a string


def exceeded(body: bytes) -> str:
    """Return the limit that the body exceeds; empty if it exceeds none."""
    # A first count that includes commas and brackets in strings is quick and usually suffices.
    if len(body) <= SMALL or not _may_exceed(body):
        return ""
    if not _too_many(_outside_strings(body)):
        return ""
    return f"the body may have at most {MAX_VALUES:,} values and {MAX_CONTAINERS:,} objects and arrays"


def has_many(body: bytes, most: int) -> bool:
    """Return whether the body may have more than `most` objects and arrays; 2 × FEW are never too many. Brackets in
    strings count as well."""
    if _are_few(body, b"[") and _are_few(body, b"{"):
        return False
    return body.count(b"[") + body.count(b"{") > most


def _may_exceed(body: bytes) -> bool:
    windows = (body[start : start + _WINDOW] for start in range(0, len(body), _WINDOW))
    if len(body) > MAX_VALUES:
        return _too_many(windows)
    if _are_few(body, b"[") and _are_few(body, b"{"):
        return False
    containers = 0  # a body this short cannot have more values
    for part in windows:
        # If brackets are rare, `replace` takes a tenth of the time of `count` or `translate`
        containers += 2 * len(part) - len(part.replace(b"[", b"")) - len(part.replace(b"{", b""))
        if containers > MAX_CONTAINERS:
            return True
    return False


def _are_few(body: bytes, sign: bytes) -> bool:
    """Return whether the sign is rare in the body; unlike `replace`, searching for a few copies nothing."""
    at = -1
    for _ in range(FEW):
        at = body.find(sign, at + 1)
        if at < 0:
            return True
    return False


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
    """Return the position after a string longer than a window."""
    while at < len(body):
        end = _end(_INSIDE, body, at)
        if end == at or body[end : end + 1] == b'"':  # no progress, because the last escape is incomplete
            return end + 1
        at = end
    return at


def _end(pattern: re.Pattern[bytes], body: bytes, at: int) -> int:
    found = pattern.match(body, at, at + _WINDOW)
    return found.end() if found is not None else at
