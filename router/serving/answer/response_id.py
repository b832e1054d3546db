"""Reads the id of a response from the answer to POST /v1/responses, on its way to the client. Pure."""

import re
from collections.abc import Callable

import msgspec

from router.contract.answer import answers
from router.http.client import ClientConnection

LARGEST = 16 * 1024 * 1024  # bytes of an answer searched; the first event repeats tools and instructions
EVENTS = 8  # events with data that are searched; the id is in `response.created`, the first
SANE = re.compile(r"[\w.:\-]{1,128}", re.ASCII)


class _NamedResponse(msgspec.Struct):
    id: str = ""


class _Event(msgspec.Struct):
    response: _NamedResponse | None = None


_WHOLE, _OF_EVENT = msgspec.json.Decoder(_NamedResponse), msgspec.json.Decoder(_Event)


def of_answer(body: bytes) -> str:
    """Return the id in an answer; empty without one."""
    return _sane(_decoded(_WHOLE, body))


def of_event(event: bytes) -> str:
    """Return the id in an event; empty without one."""
    read = _decoded(_OF_EVENT, answers.payload(event))
    return _sane(read.response if isinstance(read, _Event) else None)


def _end_of_event(data: bytes) -> int:
    """Return the position after the first blank line; 0 without one."""
    ends = [at + len(blank) for blank in (b"\n\n", b"\r\n\r\n") if (at := data.find(blank)) >= 0]
    return min(ends, default=0)


def _decoded(decoder: "msgspec.json.Decoder[_NamedResponse] | msgspec.json.Decoder[_Event]", raw: bytes) -> object:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _sane(read: object) -> str:
    found = read.id if isinstance(read, _NamedResponse) else ""
    return found if SANE.fullmatch(found) else ""


class IdNoted:
    """A client's connection that reports the response's id before the client receives it, and then behaves like the
    plain connection."""

    def __init__(self, client: ClientConnection, note: Callable[[str], None], *, streams: bool) -> None:
        self._client = client
        self._note = note
        self._streams = streams
        self._parts: list[bytes] = []
        self._size = 0
        self._events = 0
        self.read, self.start, self.extra = client.read, client.start, client.extra
        self.write: Callable[[bytes], bool] = self._write
        self.write_chunk: Callable[[bytes], bool] = self._write_chunk
        self.received: bytes | None = None  # the request has already been read
        self.end: Callable[..., None] = self._end

    @property
    def takes_chunks(self) -> bool:
        return self._client.takes_chunks

    @takes_chunks.setter
    def takes_chunks(self, takes: bool) -> None:
        self._client.takes_chunks = takes

    @property
    def gone(self) -> bool:
        return self._client.gone

    @gone.setter
    def gone(self, gone: bool) -> None:
        self._client.gone = gone

    @property
    def on_room(self) -> Callable[[], None] | None:
        return self._client.on_room

    @on_room.setter
    def on_room(self, resume: Callable[[], None] | None) -> None:
        self._client.on_room = resume

    def _write(self, data: bytes) -> bool:
        self._look(data)
        return self._client.write(data)

    def _write_chunk(self, chunk: bytes) -> bool:
        self._look(chunk[chunk.index(b"\r\n") + 2 : -2])
        return self._client.write_chunk(chunk)

    def _end(self, data: bytes = b"") -> None:
        self._look(data)
        if self._parts:
            self._settle(of_event(self._joined()) if self._streams else of_answer(self._joined()))
        self._client.end(data)

    def _joined(self) -> bytes:
        joined = b"".join(self._parts)
        self._parts = [joined] if joined else []
        return joined

    def _look(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self._size += len(data)
        if self._size > LARGEST:
            self._settle("")
        elif self._streams and b"\n" in data:
            self._look_at_events()

    def _look_at_events(self) -> None:
        joined = self._joined()
        while end := _end_of_event(joined):
            event, joined = joined[:end], joined[end:]
            self._events += answers.payload(event) != b""
            if (found := of_event(event)) or self._events >= EVENTS:
                self._settle(found)
                return
        self._parts = [joined] if joined else []

    def _settle(self, found: str) -> None:
        """Stop searching."""
        self._parts = []
        self.write, self.write_chunk, self.end = self._client.write, self._client.write_chunk, self._client.end
        if found:
            self._note(found)
