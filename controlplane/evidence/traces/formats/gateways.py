"""Requests in the logs of gateways and tracers: LiteLLM's spend logs and OpenTelemetry's spans, without prefixes.
Requests are left out if they failed, were answered from the gateway's cache, or have no output.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from controlplane.evidence.traces.formats import arrivals, fields, tables
from controlplane.evidence.traces.formats.columns import Columns
from controlplane.evidence.traces.types import LoadedTrace, TraceRequest
from router.spans import names

BLOCK_TOKENS = 64  # nominal size
INPUT = (names.INPUT, names.OLDER_INPUT, "llm.token_count.prompt")  # the last is OpenInference's
OUTPUT = (names.OUTPUT, names.OLDER_OUTPUT, "llm.token_count.completion")
SESSION = (names.CONVERSATION, "session.id")
RESOURCES = ("resourceSpans", "batches")  # the second as Tempo names them
SPEND = ("startTime", "prompt_tokens", "completion_tokens")


def detects_spend(head: str) -> bool:
    """True for JSON, and for a CSV export of the table."""
    return all(f'"{name}"' in head for name in SPEND[:2]) or set(SPEND) <= set(tables.names_of(head))


def read_spend(lines: Iterable[str], seed: int) -> LoadedTrace:
    columns, requests, read_rows = Columns(), list[TraceRequest](), 0
    left = iter(lines)
    first = next(left, "")
    is_table, every = set(SPEND) <= set(tables.names_of(first)), chain([first], left)
    for row in tables.rows(every, SPEND, columns) if is_table else fields.json_rows(every, columns):
        read_rows += 1
        output = row.integer("completion_tokens", 0)
        at, tokens = arrivals.moment(row, "startTime"), row.integer("prompt_tokens", 0)
        columns.read |= {"status", "cache_hit", "session_id"}
        cached = str(row.values.get("cache_hit", "")).lower() == "true"
        if output and tokens and not cached and row.values.get("status") != "failure":
            session = row.session(0, "session_id") if row.values.get("session_id") else ""
            requests.append(TraceRequest(0, at, session, tokens, output, (), BLOCK_TOKENS, 0.0))
    return arrivals.loaded("litellm", requests, columns, left_out=read_rows - len(requests))


def read_spans(lines: Iterable[str], seed: int) -> LoadedTrace:
    """Read one request per outermost span with usage, because a gateway's and an engine's span may describe the same
    request."""
    columns = Columns()
    spans = [
        span for row in fields.json_rows(lines, columns) for span in _spans(row) if span.values.keys() & set(INPUT)
    ]
    columns.given.clear()
    with_usage = {span.values.get("spanId") for span in spans}
    outermost = [span for span in spans if span.values.get("parentSpanId") not in with_usage]
    requests = [_of_span(span) for span in outermost]
    served = [request for request in requests if request is not None]
    return arrivals.loaded("spans", served, columns, left_out=len(requests) - len(served))


def _of_span(span: fields.TraceLine) -> TraceRequest | None:
    """Return the request; None without a prompt or an answer."""
    tokens = span.integer(_first(span, INPUT), 0)
    output = span.integer(_first(span, OUTPUT), 0) if span.values.keys() & set(OUTPUT) else 0
    at = _began(span)
    if not tokens or not output:
        return None
    session = span.session(0, _first(span, SESSION)) if span.values.keys() & set(SESSION) else ""
    return TraceRequest(0, at, session, tokens, output, (), BLOCK_TOKENS, 0.0)


def _began(span: fields.TraceLine) -> float:
    """Return the arrival. Logfire records a stream's usage when the stream ends, with the time since its headers."""
    at = arrivals.moment(span, "startTimeUnixNano")
    logged = span.values.get("logfire.span_type") == "log" and "duration" in span.values
    return at - span.seconds("duration") if logged else at


def _first(span: fields.TraceLine, among: tuple[str, ...]) -> str:
    return next(name for name in among if name in span.values)


def _spans(row: fields.TraceLine) -> Iterator[fields.TraceLine]:
    """Yield each span with its attributes and its own fields together; OTLP writes 64-bit numbers as texts."""
    within = row.values.get("trace")  # as Tempo answers
    values = within if isinstance(within, dict) else row.values
    for resource in chain.from_iterable(_list(row, values, name) for name in RESOURCES):
        for scope in _list(row, resource, "scopeSpans"):
            for span in _list(row, scope, "spans"):
                yield fields.TraceLine(row.line, _values(row, span), row.columns)


def _values(row: fields.TraceLine, span: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for attribute in _list(row, span, "attributes"):
        value = attribute.get("value")
        if isinstance(value, dict) and isinstance(attribute.get("key"), str):
            values[attribute["key"]] = _attribute(value)
    ids = {name: str(span.get(name)) for name in ("spanId", "parentSpanId")}
    return {**values, **ids, "startTimeUnixNano": _number(span.get("startTimeUnixNano"))}


def _list(row: fields.TraceLine, values: dict[str, Any], field: str) -> list[dict[str, Any]]:
    found = values.get(field, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise row.refused(field, found, "a list of objects")
    return found


def _attribute(value: dict[str, Any]) -> object:
    if "intValue" in value:
        return _number(value["intValue"])
    return value.get("doubleValue", value.get("stringValue"))


def _number(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 else value
