"""Lets web pages of the origins that the operator names use the router in a browser, but never with cookies. A page
sends its API key in a header, so no answer allows credentials, and `*` is safe. The engines' own CORS headers never
reach a client.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from router.contract.api_paths import Handling, find
from router.http.client import ClientConnection, IncomingRequest
from router.http.errors import ErrorResponse

ALL = b"*"
MAX_AGE_S = 600  # time for which a browser caches the permission
EXPOSED = (
    *("retry-after", "x-request-id", "x-weir-instance", "x-weir-class", "x-weir-policy", "x-weir-flow"),
    *("x-weir-wake-wait", "x-should-retry", "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests"),
    *("x-ratelimit-reset-requests", "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens"),
    "x-ratelimit-reset-tokens",
)
ALLOWED = "http[s]://HOST[:PORT] separated by commas, or * alone"
_ASKED_METHOD, _ASKED_HEADERS = b"access-control-request-method", b"access-control-request-headers"
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,4096}")


@dataclass(frozen=True, slots=True)
class Cors:
    origins: frozenset[bytes]  # in the form that browsers send; ALL allows every origin

    def open(self, incoming: IncomingRequest, client: ClientConnection) -> None:
        """Allow the page to read the answer."""
        own = dict(incoming.headers)
        origin = own.get(b"origin", b"")
        if ALL in self.origins:
            client.extra = b"access-control-allow-origin: *\r\n" if origin else b""
        else:
            allow = b"access-control-allow-origin: %b\r\n" % origin if origin in self.origins else b""
            client.extra = b"vary: Origin\r\n" + allow
        if origin:
            client.extra += b"access-control-expose-headers: %b\r\n" % ", ".join(EXPOSED).encode()

    async def answer(self, incoming: IncomingRequest, client: ClientConnection) -> None:
        """Answer a browser's preflight request. Raise ErrorResponse."""
        own = dict(incoming.headers)
        row, asked = find(incoming.path), own.get(_ASKED_HEADERS, b"")
        if own[b"origin"] not in self.origins and ALL not in self.origins:
            raise ErrorResponse(403, "origin_not_allowed", "pages of this origin may not use this router")
        if row is None or row.handling is Handling.REFUSED:
            raise ErrorResponse(404, "not_found", f"there is no {incoming.path[:200]}")
        if not _NAMES.fullmatch(asked):
            raise ErrorResponse(400, "invalid_headers", "access-control-request-headers: not names of headers")
        methods = ", ".join(row.methods).encode()
        lines = b"access-control-allow-methods: %b\r\naccess-control-max-age: %d\r\n" % (methods, MAX_AGE_S)
        client.start(204, lines + (b"access-control-allow-headers: %b\r\n" % asked if asked else b""))
        client.end()


def is_asked(incoming: IncomingRequest) -> bool:
    own = dict(incoming.headers)
    return incoming.method == "OPTIONS" and b"origin" in own and _ASKED_METHOD in own


def cors(given: str | None) -> Cors | None:
    """Parse the origins. None means that pages of other origins may not read answers. Raise ValueError."""
    if not given:
        return None
    names = [name.strip() for name in given.split(",")]
    wrong = next((name for name in names if not _is_origin(name)), None)
    if wrong is not None or ("*" in names and len(names) > 1):
        raise ValueError(f"--cors-origins {(wrong or given)[:100]!r}: allowed is {ALLOWED}")
    return Cors(frozenset(name.encode() for name in names))


def _is_origin(name: str) -> bool:
    """Return whether the text is an origin in the form that browsers send: lower case, without path and default
    port."""
    if name == "*":
        return True
    try:
        parts = urlsplit(name)
        usual = {"http": 80, "https": 443}.get(parts.scheme)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        port = f":{parts.port}" if parts.port not in (None, usual) else ""
    except ValueError:
        return False
    return usual is not None and bool(host) and name.isascii() and name == f"{parts.scheme}://{host}{port}"
