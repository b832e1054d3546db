"""The gateway's side of a stream, without gRPC."""

import asyncio
from dataclasses import dataclass
from typing import Any

from router.http.clients import ClientConnections
from router.picker import messages
from router.picker.protobuf import Fields, fields, mapping, message, number, put
from router.picker.protobuf import messages as several
from router.picker.stream import GatewayStream

FULL_DUPLEX, NONE = messages.FULL_DUPLEX, messages.NONE


def headers(of: dict[str, str], kind: int = 2, *, ends: bool = False) -> bytes:
    """Return request_headers (2) or response_headers (3)."""
    pairs = b"".join(put(1, put(1, name) + put(3, value)) for name, value in of.items())
    return put(kind, put(1, pairs) + (put(3, 1) if ends else b""))


def body(data: bytes, *, ends: bool = True) -> bytes:
    return put(4, put(1, data) + (put(2, 1) if ends else b""))


def trailers(**lines: str) -> bytes:
    return headers({name.replace("_", "-"): value for name, value in lines.items()}, 6)


def _entry(name: str, value: bytes) -> bytes:
    return put(1, put(1, name) + put(2, value))


def metadata(namespace: str, name: str, value: str | list[str]) -> bytes:
    coded = put(3, value) if isinstance(value, str) else put(6, b"".join(put(1, put(3, one)) for one in value))
    return put(8, _entry(namespace, _entry(name, coded)))


def modes(request: int = FULL_DUPLEX, response: int = NONE) -> bytes:
    return put(11, put(1, request) + put(2, response))


@dataclass
class Read:
    """One parsed message of the picker."""

    kind: str
    endpoints: str = ""
    metadata: str = ""
    headers: dict[str, str] | None = None
    removed: tuple[str, ...] = ()
    body: bytes | None = None
    status: int = 0


_KINDS = {1: "request_headers", 2: "response_headers", 3: "request_body", 5: "request_trailers", 7: "refused"}


def read(raw: bytes) -> Read:
    of = fields(raw)
    kind = next(which for which in _KINDS if which in of)
    inner = fields(message(of, kind))
    if kind == 7:
        status = number(fields(message(inner, 1)), 1)
        return Read("refused", headers=_set(fields(message(inner, 2))), body=message(inner, 3), status=status)
    common = fields(message(inner, 1))
    mutation = common if kind == 5 else fields(message(common, 2))
    lines = _set(mutation)
    changed = fields(message(common, 3))
    whole = several(changed, 1)
    streamed = fields(message(changed, 3))
    return Read(
        _KINDS[kind],
        lines.pop(messages.DESTINATION, ""),
        _metadata(of),
        lines,
        tuple(one.decode() for one in several(mutation, 2)),
        whole[0] if whole else message(streamed, 1) if 3 in changed else None,
    )


def _set(mutation: Fields) -> dict[str, str]:
    pairs = (fields(message(fields(one), 1)) for one in several(mutation, 1))
    return {message(pair, 1).decode(): message(pair, 3).decode() for pair in pairs}


def _metadata(of: Fields) -> str:
    struct = dict(mapping(fields(message(of, 8)), 1)).get(messages.LB, b"")
    inner = fields(message(fields(struct), 5))
    value = dict(mapping(inner, 1)).get(messages.DESTINATION, b"")
    return message(fields(value), 3).decode()


class Asking:
    """A wire on which `say` sends as the gateway and `answer` reads the picker's messages."""

    def __init__(self, **options: Any) -> None:
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        clients, objectives = options.pop("clients", ClientConnections()), options.pop("objectives", {})
        self.stream = GatewayStream(self, clients, objectives, **options)

    async def read(self) -> bytes | None:
        return await self._said.get()

    async def write(self, message: bytes) -> None:
        self._answers.put_nowait(message)

    def say(self, *said: bytes | None) -> None:
        for one in said:
            self._said.put_nowait(one)

    async def answer(self) -> Read:
        return read(await asyncio.wait_for(self._answers.get(), 10))

    @property
    def unread(self) -> int:
        return self._answers.qsize()
