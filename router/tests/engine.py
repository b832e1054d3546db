"""A small fake engine: HTTP/1.1 over asyncio streams, with scripted faults. It records all requests."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Writer = asyncio.StreamWriter


@dataclass
class Received:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


Behaviour = Callable[["Engine", Received, Writer], Awaitable[None]]


@dataclass
class Engine:
    """Answers each request with the next behaviour of `script`, and then with `behaviour`."""

    behaviour: Behaviour
    script: list[Behaviour] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    connections: int = 0  # open now
    accepted: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)  # set when the router disconnected during an answer
    release: asyncio.Event = field(default_factory=asyncio.Event)  # released to let waiting behaviours continue
    port: int = 0
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        self.connections += 1
        self.accepted += 1
        try:
            while (request := await _read(reader)) is not None:
                self.received.append(request)
                behaviour = self.script.pop(0) if self.script else self.behaviour
                await self._behave(behaviour, request, reader, writer)
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    async def _behave(
        self, behaviour: Behaviour, request: Received, reader: asyncio.StreamReader, writer: Writer
    ) -> None:
        """Run the behaviour, unless the router disconnects before it ends."""
        running = asyncio.ensure_future(behaviour(self, request, writer))
        gone = asyncio.ensure_future(_closed(reader))
        await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            self.cancelled.set()
            writer.close()
        for task in (running, gone):
            task.cancel()
        await asyncio.gather(running, gone, return_exceptions=True)
        if running.done() and not running.cancelled() and (error := running.exception()) is not None:
            raise error


async def _closed(reader: asyncio.StreamReader) -> None:
    """Return when the other side has closed the connection; bytes of a next request are not consumed."""
    while not reader.at_eof():
        await asyncio.sleep(0.005)


async def _read(reader: asyncio.StreamReader) -> Received | None:
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, target, headers, body)


@asynccontextmanager
async def engine(
    behaviour: Behaviour | None = None,
    *script: Behaviour,
    of: type[Any] = Engine,
    secure: ssl.SSLContext | None = None,
) -> AsyncIterator[Any]:
    made = of(behaviour or reply(), list(script))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=secure)
    made.scheme = "https" if secure else "http"
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.release.set()
        server.close()


USAGE = {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 64}}


def write_head(writer: Writer, status: int, *headers: str) -> None:
    writer.write("\r\n".join([f"HTTP/1.1 {status} X", *headers, "", ""]).encode())


def write_chunk(writer: Writer, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


# An answer of each API, all in one object
ANSWER: dict[str, Any] = {
    "object": "x",
    "choices": [{"index": 0, "message": {"content": "w"}, "text": "w", "finish_reason": "stop"}],
    **{"content": [{"type": "text", "text": "w"}], "output": [{"type": "message"}], "status": "completed"},
    **{"data": [{"embedding": [0.5]}], "usage": USAGE},
}


def reply(body: object = None, status: int = 200, *headers: str) -> Behaviour:
    """Return a whole answer with a content length; by default one that fits the request."""

    async def behave(engine: Engine, request: Received, writer: Writer) -> None:
        if body is None and request.document.get("stream"):
            await stream()(engine, request, writer)
            return
        data = json.dumps(body if body is not None else ANSWER).encode()
        write_head(writer, status, "content-type: application/json", f"content-length: {len(data)}", *headers)
        writer.write(data)
        await writer.drain()

    return behave


def events(words: int = 3, usage: bool = True) -> list[bytes]:
    made = [b'data: {"choices":[{"delta":{"content":"w%d"}}]}\n\n' % i for i in range(words)]
    if usage:
        made.append(b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n")
    return [*made, b"data: [DONE]\n\n"]


def stream(parts: list[bytes] | None = None, pause_s: float = 0.0) -> Behaviour:
    async def behave(engine: Engine, request: Received, writer: Writer) -> None:
        write_head(writer, 200, "content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked")
        options = request.document.get("stream_options") or {}
        for part in parts if parts is not None else events(usage=options.get("include_usage", False)):
            write_chunk(writer, part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    return behave


def break_off(parts: list[bytes]) -> Behaviour:
    """Begin a stream and close the connection in the middle."""

    async def behave(engine: Engine, request: Received, writer: Writer) -> None:
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        for part in parts:
            write_chunk(writer, part)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    return behave


async def hang_up(engine: Engine, request: Received, writer: Writer) -> None:
    """Close without an answer."""
    writer.close()


async def hang(engine: Engine, request: Received, writer: Writer) -> None:
    """Send nothing until released, then answer."""
    await engine.release.wait()
    await reply()(engine, request, writer)


async def first_then_wait(engine: Engine, request: Received, writer: Writer) -> None:
    """Send one event, and the others once released."""
    write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
    write_chunk(writer, events()[0])
    await writer.drain()
    await engine.release.wait()
    for part in events()[1:]:
        write_chunk(writer, part)
    writer.write(b"0\r\n\r\n")
    await writer.drain()
