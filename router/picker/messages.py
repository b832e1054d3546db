"""The messages between a gateway and the picker about one request. Pure.

They are Envoy's `envoy.service.ext_proc.v3.ExternalProcessor` (api/envoy/service/ext_proc/v3/external_processor.proto),
used by the Gateway API Inference Extension's endpoint picker protocol 1.0. Comments explain the field numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from router.http.request_limits import MAX_HEAD
from router.picker.protobuf import Fields, Malformed, fields, mapping, message, messages, number, put

Headers = list[tuple[bytes, bytes]]

DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
LB, SUBSET_HINT = "envoy.lb", "envoy.lb.subset_hint"  # namespaces of metadata

MOST_HEADERS = 500
LARGEST_HEAD = 2 * MAX_HEAD  # bytes of a message with headers; its framing is larger than that of HTTP

NONE, BUFFERED, FULL_DUPLEX = 0, 2, 4  # values of BodySendMode
OVERWRITE_OR_ADD = 2  # a HeaderAppendAction
CHUNK = 62 * 1024  # bytes per message of a returned body; Envoy accepts up to 64 KiB


@dataclass(frozen=True, slots=True)
class Modes:
    """The parts of bodies that the gateway sends."""

    request_body: int
    response_body: int


@dataclass(frozen=True, slots=True)
class GatewayMessage:
    """A message of the gateway."""

    kind: str  # a name in KINDS; empty for an unknown one
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    ends: bool = False  # True for the last message of the request, or of the response
    subset: frozenset[str] | None = None  # addresses that may be picked; None: all addresses
    served: str = ""  # address of the endpoint that served the request
    modes: Modes | None = None  # sent in the first message of a stream


KINDS = {
    2: "request_headers",
    3: "response_headers",
    4: "request_body",
    5: "response_body",
    6: "request_trailers",
    7: "response_trailers",
}


def read(raw: bytes) -> GatewayMessage:
    """Read a ProcessingRequest. Raise Malformed."""
    of = fields(raw)
    kind = next((which for which in KINDS if which in of), 0)
    inner = fields(message(of, kind)) if kind else {}
    is_headers, is_body = kind in (2, 3), kind in (4, 5)
    has_lines = is_headers or kind == 6
    metadata = {name: fields(value) for name, value in mapping(fields(message(of, 8)), 1)}  # metadata_context
    return GatewayMessage(
        KINDS.get(kind, ""),
        _headers(message(inner, 1)) if has_lines else [],
        message(inner, 1) if is_body else b"",
        bool(number(inner, 3 if is_headers else 2)) or kind in (6, 7),  # end_of_stream
        _subset(metadata),
        next(iter(_texts(metadata.get(LB, {}), SERVED)), ""),
        _modes(message(of, 11)) if 11 in of else None,  # protocol_config
    )


class TooManyHeaders(Malformed):
    """Too many headers; reading them would delay all requests."""


def _headers(header_map: bytes) -> Headers:
    if len(header_map) > LARGEST_HEAD:
        raise TooManyHeaders
    several = messages(fields(header_map), 1)
    if len(several) > MOST_HEADERS:
        raise TooManyHeaders
    pairs = (fields(one) for one in several)
    return [(message(pair, 1).lower(), message(pair, 3) or message(pair, 2)) for pair in pairs]  # raw_value, value


def _subset(metadata: dict[str, Fields]) -> frozenset[str] | None:
    struct = metadata.get(SUBSET_HINT)
    if struct is None or SUBSET not in dict(mapping(struct, 1)):
        return None
    return frozenset(_texts(struct, SUBSET))


def _texts(struct: Fields, name: str) -> Iterable[str]:
    """Return the texts in a value of a google.protobuf.Struct: one text, comma-separated texts, or a list."""
    value = fields(dict(mapping(struct, 1)).get(name, b""))
    several = [fields(one) for one in messages(fields(message(value, 6)), 1)]  # list_value, of values
    for one in (value, *several):
        for text in message(one, 3).decode("utf-8", "replace").split(","):  # string_value
            if text.strip():
                yield text.strip()


def _modes(config: bytes) -> Modes:
    of = fields(config)
    return Modes(number(of, 1), number(of, 2))


def go_on() -> bytes:
    """Answer the request headers by asking for the body."""
    return put(1, b"")


def picked(
    endpoints: Sequence[str], headers: Sequence[tuple[bytes, bytes]], dropped: Sequence[bytes], body: bytes | None
) -> bytes:
    """Return the answer to a buffered body, with the destination in header and metadata. `body`, if set, replaces the
    body."""
    changed = b"" if body is None else put(3, put(1, body))  # body_mutation
    return put(3, put(1, _mutation(endpoints, headers, dropped) + changed)) + _metadata(endpoints)


def picked_streamed(
    endpoints: Sequence[str],
    headers: Sequence[tuple[bytes, bytes]],
    dropped: Sequence[bytes],
    body: bytes | None,
    *,
    trailers: Sequence[bytes] | None = None,
) -> list[bytes]:
    """Return the same answer followed by the body, as FULL_DUPLEX_STREAMED requires. None: the request has no body.
    `trailers` has the names of the trailers after the body, all of which are removed; None: there are no trailers.
    """
    answers = [put(1, put(1, _mutation(endpoints, headers, dropped))) + _metadata(endpoints)]
    if body is not None:
        parts = [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)] or [b""]
        last = len(parts) - 1
        answers += [_part(part, ends=at == last and trailers is None) for at, part in enumerate(parts)]
    if trailers is None:
        return answers
    return [*answers, put(5, put(1, b"".join(put(2, name) for name in trailers)))]  # request_trailers.header_mutation


def _part(data: bytes, *, ends: bool) -> bytes:
    streamed = put(1, data) + (put(2, 1) if ends else b"")
    return put(3, put(1, put(3, put(3, streamed))))  # request_body.response.body_mutation.streamed_response


def _mutation(endpoints: Sequence[str], headers: Sequence[tuple[bytes, bytes]], dropped: Sequence[bytes]) -> bytes:
    lines = [(DESTINATION.encode(), ",".join(endpoints).encode()), *headers]
    return put(2, _set_headers(lines) + b"".join(put(2, name) for name in dropped))  # header_mutation


def _set_headers(lines: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(
        put(1, put(1, put(1, name) + put(3, value)) + put(3, OVERWRITE_OR_ADD))  # header: key, raw_value; append_action
        for name, value in lines
    )


def _metadata(endpoints: Sequence[str]) -> bytes:
    return put(8, _entry(LB, put(5, _entry(DESTINATION, put(3, ",".join(endpoints))))))  # a Struct within a Struct


def _entry(name: str, value: bytes) -> bytes:
    return put(1, put(1, name) + put(2, value))


def answered(headers: Headers) -> bytes:
    """Return the answer to response headers, with the router's headers added."""
    return put(2, put(1, put(2, _set_headers(headers))))


def refused(status: int, headers: Headers, body: bytes, why: str) -> bytes:
    """Return an ImmediateResponse: the picker itself answers the client."""
    return put(7, put(1, put(1, status)) + put(2, _set_headers(headers)) + put(3, body) + put(5, why))


# grpc.health.v1.Health/Check
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


def asked_service(raw: bytes) -> str:
    return message(fields(raw), 1).decode("utf-8", "replace")


def health(status: int) -> bytes:
    return put(1, status)
