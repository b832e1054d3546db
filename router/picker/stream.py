"""One request of a gateway: its stream of messages, with the interface of a client's connection."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from router.contract.engine_fields import HEADERS as INSIDE
from router.http import doors
from router.http.body import MAX_BODY, ClientGone, too_large, too_many
from router.http.client import IncomingRequest, client_of
from router.http.clients import ClientConnections, HeldBody
from router.http.errors import ErrorResponse
from router.http.request_limits import BODY, BODY_S, MAX_HEAD, too_late
from router.picker import messages
from router.picker.messages import (
    BUFFERED,
    FULL_DUPLEX,
    MOST_HEADERS,
    NONE,
    GatewayMessage,
    Headers,
    Modes,
    TooManyHeaders,
)
from router.request import bands
from router.tokenize import salt

OBJECTIVES = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
FAIRNESS = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
# Headers that are not sent to engines; the salt is sent in the body, distinct per key
_ROUTERS_OWN = {*(b"x-weir-pool", b"x-weir-priority", b"x-vllm-priority", b"x-weir-key-id", salt.HEADER), *INSIDE}
UNTOLD = Modes(FULL_DUPLEX, NONE)  # assumed if the gateway does not state its modes


def _too_many_headers() -> ErrorResponse:
    allowed = f"{MOST_HEADERS} headers of {MAX_HEAD} bytes"
    return ErrorResponse(431, "headers_too_large", f"a request may have at most {allowed}")


class Wire(Protocol):
    """The two directions of a gRPC stream."""

    async def read(self) -> bytes | None:
        """Return the next message; None at the end of the gateway's stream."""

    async def write(self, message: bytes) -> None: ...


def pairs(lines: bytes) -> Headers:
    """Return name and value of each header line that the router has written."""
    parted = (line.partition(b": ") for line in lines.split(b"\r\n") if line)
    return [(name, value) for name, _, value in parted]


@dataclass(frozen=True, slots=True)
class Answered:
    """The gateway's report on the response; status is None if it reported none."""

    status: int | None = None
    served: str = ""  # ip:port
    kind: bytes = b""  # content type


class GatewayStream:
    """A ClientConnection whose own answers are only refusals: engines answer through the gateway."""

    takes_chunks = False
    received: bytes | None = None

    def __init__(self, wire: Wire, clients: ClientConnections, objectives: Mapping[str, int], pool: str = "") -> None:
        self.on_room: Callable[[], None] | None = None
        self.extra = b""
        self.gone = False
        self.subset: frozenset[str] | None = None
        self.is_picked = False
        self.body = b""
        self.incoming = IncomingRequest("/", b"", [], "")
        self._came: set[bytes] = set()  # names of the headers sent by the client
        self._wire = wire
        self._held = HeldBody(clients)
        self._objectives = objectives
        self._pool = pool
        self._modes = UNTOLD
        self._is_read = False  # True once the request has been read completely
        self._has_body = False
        self._trailers: list[bytes] | None = None  # their names
        self._refusal: tuple[int, Headers, bytes] | None = None

    async def head(self) -> IncomingRequest | None:
        """Return the head; None if the gateway closes the stream first, or sends too much data."""
        try:
            said = await self._next()
        except TooManyHeaders:
            doors.refuse(self.incoming, _too_many_headers(), self)
            return None
        if said is None or said.kind != "request_headers":
            return None
        self._modes, self.subset, self._is_read = said.modes or UNTOLD, said.subset, said.ends
        own = dict(said.headers)
        target = own.get(b":path", b"/")
        path, _, query = target.partition(b"?")
        method = own.get(b":method", b"POST").decode("latin-1")
        peer = next((own[name] for name in FAIRNESS if own.get(name)), own.get(b"x-forwarded-for", b"gateway"))
        lines = [header for header in said.headers if not header[0].startswith(b":")]
        self._came = {name for name, _ in lines}
        lines += self._further(own)
        self.incoming = IncomingRequest(path.decode("latin-1"), query, lines, peer.decode("latin-1"), method)
        return self.incoming

    def _further(self, own: Mapping[bytes, bytes]) -> Headers:
        """Return headers that the gateway sends under its own names, under Weir's names."""
        further: Headers = []
        if self._pool and b"x-weir-pool" not in own:
            further.append((b"x-weir-pool", self._pool.encode()))
        named = next((own[name].decode("latin-1") for name in OBJECTIVES if name in own), None)
        if named is not None and named in self._objectives and bands.HEADER not in own:
            further.append((bands.HEADER, b"%d" % self._objectives[named]))
        return further

    async def read(self) -> bytes:
        """Return the request's body. Raise ErrorResponse, ClientGone."""
        if self._is_read:
            return b""
        if self._modes.request_body not in (BUFFERED, FULL_DUPLEX):
            why = "the gateway does not send whole bodies: set request_body_mode to FULL_DUPLEX_STREAMED or BUFFERED"
            raise ErrorResponse(500, "gateway_misconfigured", why)
        if self._modes.request_body == BUFFERED:
            await self._wire.write(messages.go_on())
        try:
            async with asyncio.timeout(BODY_S):
                self.body = b"".join(await self._parts())
        except TimeoutError:
            raise too_late(BODY) from None
        return self.body

    async def _parts(self) -> list[bytes]:
        parts, size = [], 0
        while not self._is_read:
            said = await self._next()
            if said is None:
                self.gone = True
                raise ClientGone
            self._has_body = self._has_body or said.kind == "request_body"
            if said.kind == "request_trailers":
                self._trailers = [name for name, _ in said.headers]
            self._is_read = said.ends
            parts.append(said.body)
            size += len(said.body)
            if size > MAX_BODY:
                raise too_large()
            if not self._held.grow(client_of(self.incoming), size):
                raise too_many()
        return parts

    def release(self) -> None:
        """Stop holding the body."""
        self._held.release()

    async def pick(
        self, endpoints: Sequence[str], headers: Sequence[tuple[bytes, bytes]] = (), body: bytes | None = None
    ) -> None:
        """Send the addresses to the gateway, best first. `body` replaces the client's body."""
        self.is_picked = True
        kept = {name for name, _ in self.incoming.headers} - _ROUTERS_OWN
        dropped = [name for name in self._came if name not in kept]  # dropped headers, such as our API key
        if body is not None:
            dropped += [b"content-length", b"content-encoding"]
        if self._has_body and self._modes.request_body == BUFFERED:
            await self._wire.write(messages.picked(endpoints, headers, dropped, body))
            return
        back = (self.body if body is None else body) if self._has_body else None
        for message in messages.picked_streamed(endpoints, headers, dropped, back, trailers=self._trailers):
            await self._wire.write(message)

    @property
    def tells_the_end(self) -> bool:
        """True if the stream stays open until the response has ended, because the gateway sends no response bodies."""
        return self._modes.response_body == NONE

    async def answered(self) -> Answered:
        """Wait for the head of the response; `pass_on` follows. Leftover messages of the request are skipped: for
        bodies beyond 1 MB, some gateways report the end twice."""
        while (said := await self._next()) is not None:
            if said.kind == "response_headers":
                own = dict(said.headers)
                status = own.get(b":status", b"")
                served = said.served or own.get(messages.SERVED.encode(), b"").decode("latin-1")
                kind = own.get(b"content-type", b"")
                return Answered(int(status) if status.isdigit() else None, served, kind)
        return Answered()

    async def pass_on(self, headers: Headers) -> None:
        """Pass the head of the response on to the client, with these headers; the gateway may then end the stream."""
        await self._wire.write(messages.answered(headers))

    async def ended(self) -> None:
        """Wait for the end of the stream."""
        while await self._next() is not None:
            pass

    async def _next(self) -> GatewayMessage | None:
        raw = await self._wire.read()
        return None if raw is None else messages.read(raw)

    # Methods of a ClientConnection that are used by refusals

    def start(self, status: int, lines: bytes) -> None:
        self._refusal = status, [pair for pair in pairs(lines) if pair[0] != b"content-length"], b""

    def write(self, data: bytes) -> bool:
        self.end(data)
        return False

    def write_chunk(self, chunk: bytes) -> bool:
        raise NotImplementedError("takes_chunks is False")

    def end(self, data: bytes = b"") -> None:
        if self._refusal is not None:
            status, headers, body = self._refusal
            self._refusal = status, headers, body + data

    @property
    def refusal(self) -> bytes | None:
        """Return the refusal of a request that was not passed on; None if it was passed on."""
        if self._refusal is None or self.is_picked:
            return None
        return messages.refused(*self._refusal, "weir")
