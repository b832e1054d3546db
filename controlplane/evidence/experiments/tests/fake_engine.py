"""A small OpenAI endpoint over real sockets: streams a completion token by token and records its requests."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

Behaviour = Callable[[int, dict[str, Any]], str]  # request number, body → "ok", "cut", "hang", or of STATUSES
STATUSES = {"refuse": 429, "error": 500, "reject": 400, "missing": 404}


@dataclass
class FakeEngine:
    """The received requests, and how to answer."""

    behaviour: Behaviour = lambda number, body: "ok"
    token_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    connections: int = 0
    answered: int = 0  # answers sent completely
    url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        if lines[0].startswith("GET /v1/models"):
            _send_json(writer, 200, {"data": [{"id": "fake", "max_model_len": 131072}]})
            return True
        body = json.loads(raw)
        self.bodies.append(body)
        self.headers.append(headers)
        return await self._answer(writer, self.behaviour(len(self.bodies), body), body)

    async def _answer(self, writer: asyncio.StreamWriter, what: str, body: dict[str, Any]) -> bool:
        if what == "hang":
            await asyncio.sleep(3600)
        if what in STATUSES:
            status = STATUSES[what]
            _send_json(writer, status, {"error": {"message": f"{what}d on purpose", "code": what}})
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
            b"x-weir-instance: fake-0\r\nx-weir-class: warm\r\nx-weir-policy: 3\r\n\r\n"
        )
        for token in range(body["max_tokens"]):
            if what == "cut" and token == 1:
                return False
            _send_event(writer, json.dumps({"choices": [{"text": " a", "index": 0}]}))
            await asyncio.sleep(self.token_s)
        _send_event(writer, json.dumps({"choices": [], "usage": _usage(body)}))
        _send_event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        self.answered += 1
        return True


def _usage(body: dict[str, Any]) -> dict[str, Any]:
    tokens = -(-len(body["prompt"]) // 4)
    return {
        "prompt_tokens": tokens,
        "completion_tokens": body["max_tokens"],
        "prompt_tokens_details": {
            "cached_tokens": tokens // 2,
            "cached_tokens_details": {"device": 8, "host": 4, "storage": 2},
        },
    }


def _send_event(writer: asyncio.StreamWriter, data: str) -> None:
    raw = f"data: {data}\n\n".encode()
    writer.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")


def _send_json(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    raw = json.dumps(value).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw
    )


@asynccontextmanager
async def fake_engine(**options: Any) -> AsyncIterator[FakeEngine]:
    engine = FakeEngine(**options)
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await engine.handle(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def engine_in_a_thread(**options: Any) -> Iterator[FakeEngine]:
    """Run a fake engine for synchronous code under test, or for another process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    context = fake_engine(**options)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
