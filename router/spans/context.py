"""The identity of a trace and its spans, and the `traceparent` header (W3C Trace Context). Pure."""

import random
import re
from dataclasses import dataclass

SAMPLED = 1
TRACE = (b"traceparent", b"tracestate")  # headers
_HEADER = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16
_SPANS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Parent:
    """The caller's span, from its `traceparent` header."""

    trace: str  # 32 hex digits
    span: str  # 16 hex digits
    sampled: bool


def parse(header: bytes) -> Parent | None:
    """Parse the headers; None if they are malformed, so that a new trace begins."""
    found = _HEADER.fullmatch(header.strip(b" \t"))
    if found is None:
        return None
    version, trace, span, flags, further = found.groups()
    if version == b"ff" or (version == b"00" and further is not None) or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return Parent(trace.decode(), span.decode(), bool(int(flags, 16) & SAMPLED))


def new_trace() -> str:
    return f"{random.getrandbits(128) or 1:032x}"


def unsampled() -> tuple[int, bytes]:
    """Return (the lower half of a new trace's id, its header for unsampled requests); most requests need no more."""
    bits = random.getrandbits(192)
    return bits >> 64 & _SPANS, b"00-%032x-%016x-00" % (bits >> 64 or 1, bits & _SPANS or 1)


def new_base() -> int:
    """Return the id of the first span of a request or job; the other ids count up from it and need no further random
    numbers."""
    return random.getrandbits(64)


def span_id(base: int, number: int) -> str:
    return f"{(base + number & _SPANS) or 1:016x}"


def header(trace: str, span: str, *, sampled: bool) -> bytes:
    return f"00-{trace}-{span}-0{int(sampled)}".encode()
