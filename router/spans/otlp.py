"""Spans as OTLP/JSON (opentelemetry-proto 1.x): ids in hex, 64-bit integers as strings, enums as numbers. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

import orjson

Attribute = str | bool | int | float
Kind = Literal["internal", "server", "client", "producer", "consumer"]
_KINDS: dict[Kind, int] = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_ERROR = 2
_FLAGS = 0x101  # sampled, and whether the parent is remote is known
_REMOTE = 0x200
LONGEST = 256  # characters of an attribute's text; a span then takes about a kilobyte


@dataclass(slots=True)
class Span:
    name: str
    kind: Kind
    trace: str
    id: str
    began: float  # s, Unix
    ended: float
    parent: str = ""
    remote: bool = False  # the parent belongs to another process
    state: str = ""  # tracestate
    attributes: dict[str, Attribute | None] = field(default_factory=dict)  # None is omitted
    failed: bool = False


def encoded(span: Span) -> bytes:
    made: dict[str, Any] = {
        "traceId": span.trace,
        "spanId": span.id,
        "flags": _FLAGS | (_REMOTE if span.remote else 0),
        "name": span.name[:LONGEST],
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": _nanoseconds(span.began),
        "endTimeUnixNano": _nanoseconds(max(span.began, span.ended)),
        "attributes": attributes(span.attributes),
        "status": {"code": _ERROR} if span.failed else {},
    }
    if span.parent:
        made["parentSpanId"] = span.parent
    if span.state:
        made["traceState"] = span.state
    return orjson.dumps(made)


def attributes(named: Mapping[str, Attribute | None]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in named.items() if _has_value(value)]


def request(resource: Mapping[str, str], scope: str, version: str, spans: Iterable[bytes]) -> bytes:
    """Return the body of one export; `spans` are already encoded."""
    about = orjson.dumps(attributes(resource))
    scoped = orjson.dumps({"name": scope, "version": version})
    return b'{"resourceSpans":[{"resource":{"attributes":%b},"scopeSpans":[{"scope":%b,"spans":[%b]}]}]}' % (
        about,
        scoped,
        b",".join(spans),
    )


def rejected(answer: bytes) -> int:
    """Return the number of an export's spans that the collector rejected."""
    try:
        made = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return 0
    partial = made.get("partialSuccess") if isinstance(made, dict) else None
    count = partial.get("rejectedSpans", 0) if isinstance(partial, dict) else 0
    try:
        return max(0, int(count))
    except (TypeError, ValueError):
        return 0


def _has_value(value: Attribute | None) -> bool:
    return value is not None and value != "" and not (isinstance(value, float) and not isfinite(value))


def _value(value: Attribute | None) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)[:LONGEST]}


def _nanoseconds(at: float) -> str:
    return str(int(at * 1_000_000) * 1000)
