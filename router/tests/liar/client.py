"""A strict client: h11 parses its input and checks that it is well formed."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import h11


@dataclass
class Got:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_over: bool = False  # the answer has ended according to HTTP
    has_left: bool = False
    problem: str = ""

    @property
    def streams(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def payloads(self) -> list[Any]:
        """Return the payload of each event; None if it is not JSON."""
        made = []
        for event in self.body.replace(b"\r\n", b"\n").split(b"\n\n"):
            data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
            if data:
                made.append("[DONE]" if data == b"[DONE]" else _read(data))
        return made


def _read(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


async def ask(
    port: int, path: str, document: dict[str, Any], got: Got, leaves_after: int | None, **headers: str
) -> None:
    """Send a request. `leaves_after` is the number of body bytes after which the client disconnects; -1: at once."""
    body = json.dumps(document).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    http = h11.Connection(h11.CLIENT)
    named = {"host": "x", "content-type": "application/json", "content-length": str(len(body)), **headers}
    request = h11.Request(method="POST", target=path, headers=list(named.items()))
    try:
        writer.write((http.send(request) or b"") + (http.send(h11.Data(data=body)) or b""))
        http.send(h11.EndOfMessage())
        await writer.drain()
        if leaves_after == -1:
            got.has_left = True
            return
        await _receive(http, reader, got, leaves_after)
    finally:
        writer.transport.abort()


async def _receive(http: h11.Connection, reader: asyncio.StreamReader, got: Got, leaves_after: int | None) -> None:
    while not got.is_over:
        try:
            event = http.next_event()
        except h11.RemoteProtocolError as error:
            got.problem = str(error)
            return
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Response):
            got.status = event.status_code
            got.headers = {name.decode(): value.decode() for name, value in event.headers}
        elif isinstance(event, h11.Data):
            got.body += event.data
            if leaves_after is not None and len(got.body) >= leaves_after:
                got.has_left = True
                return
        elif isinstance(event, h11.EndOfMessage):
            got.is_over = True
        else:
            got.problem = f"unexpected: {event}"
            return
