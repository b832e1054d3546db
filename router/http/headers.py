"""Headers sent to the engine and headers returned to the client. Pure."""

import random
import re
from collections.abc import Iterable
from typing import Final

from router.contract.engine_fields import HEADERS as INSIDE

Headers = Iterable[tuple[bytes, bytes]]

_HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
# accept-encoding: a compressed answer would hide its usage. content-encoding: the body has been decompressed. expect:
# the server has answered it. x-vllm-priority: the router orders requests. x-cache-salt: moved into the body and made
# distinct per key.
NOT_FORWARDED: Final = frozenset(
    _HOP_BY_HOP
    | {b"host", b"content-length", b"accept-encoding", b"content-encoding", b"expect", b"x-request-id", b"x-weir-pool"}
    | {b"x-weir-priority", b"x-vllm-priority", b"x-weir-key-id", b"x-cache-salt"}
    | INSIDE
)
_OWN = {b"x-request-id", b"x-weir-instance", b"x-weir-class", b"x-weir-policy", b"x-weir-flow", b"x-weir-wake-wait"}
# The router itself decides what pages of other origins may do (router/http/cors.py).
_OF_CORS = ("allow-origin", "allow-credentials", "allow-methods", "allow-headers", "expose-headers", "max-age")
_CORS = {f"access-control-{name}".encode() for name in _OF_CORS}
_NOT_RETURNED: Final = frozenset(_HOP_BY_HOP | _OWN | _CORS)
_SANE_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")


def request_ids(headers: dict[bytes, bytes]) -> tuple[str, str]:
    """Return the request's id for the client, and the router's own.

    The first is the client's if it is safe in a log, a header and a Redis key. Several requests may share it; the
    second is drawn here and unique. It contains no colon, because vLLM's P2pNcclConnector parses hosts and ports from
    it.
    """
    drawn = "req-" + random.getrandbits(96).to_bytes(12).hex()
    given = headers.get(b"x-request-id")
    if given is None or not _SANE_ID.fullmatch(given):
        return drawn, drawn
    name = given.decode()
    return name, name.replace(":", ".") + drawn[3:]


def request_id(headers: dict[bytes, bytes]) -> str:
    return request_ids(headers)[0]


def forwarded(headers: Headers, own: dict[bytes, bytes]) -> bytes:
    """Return the header lines for the engine, without a request id; `own` has the same headers by name."""
    dropped = NOT_FORWARDED
    if b"connection" in own:
        dropped = dropped | {token.strip().lower() for token in own[b"connection"].split(b",")}
    lines: list[bytes] = []
    for header in headers:
        if header[0] not in dropped:
            lines += header[0], b": ", header[1], b"\r\n"
    return b"".join(lines)


def id_line(request_id: str) -> bytes:
    return b"x-request-id: %b\r\n" % request_id.encode()


def returned(headers: Headers, *, without_length: bool) -> bytes:
    """Return the header lines of the engine's response for the client."""
    lines: list[bytes] = []
    for header in headers:
        if header[0] not in _NOT_RETURNED and not (without_length and header[0] == b"content-length"):
            lines += header[0], b": ", header[1], b"\r\n"
    return b"".join(lines)


def value_of(headers: Headers, name: bytes) -> bytes:
    for key, value in headers:
        if key == name:
            return value
    return b""
