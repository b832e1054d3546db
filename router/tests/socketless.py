"""A router without sockets, so that the cost of a request can be counted: bytes in, bytes out, in one process.

Everything from the client's bytes to its answer runs as under `python -m router`, except for transports that hand bytes
over in the next turn of the loop. As a program it lists the calls of the given number of requests, lets valgrind count
their instructions, or serves every shape and writes the receipts, which shows a compiler what is used.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import uvloop

from router.app import Router
from router.contract.redis.published import FleetValue, PublishedInstance
from router.http.server import HttpServer
from router.process import tame_garbage_collection
from router.standalone import POOL
from router.standalone.file_source import FileSource
from router.telemetry.receipts import encoded
from router.telemetry.traffic import TrafficRecorder
from router.upstream.connection import Connection
from router.upstream.connection_pool import ConnectionPool

CLIENTS = 16
SESSIONS = 64
CHUNKS = 64
WHOLE = ("unary", "long")  # shapes that are answered at once
READ = 256_000  # bytes that uvloop reads at a time
STREAMS = '"stream":true,'
URL = "http://127.0.0.1:{}"
_TESTS = os.path.dirname(__file__)
_COUNTED = (os.path.dirname(_TESTS) + "/", "<")  # also leaves out what dataclasses and named tuples generate
USAGE = (
    b'"usage":{"prompt_tokens":1024,"completion_tokens":64,"total_tokens":1088,'
    b'"prompt_tokens_details":{"cached_tokens":1008}}'
)
_NAMED = b'"id":"chatcmpl-1","created":1700000000,"model":"bench",'
_WHOLE = b'{"object":"chat.completion",%b"choices":[{"index":0,"message":{"role":"assistant","content":"%b"},' % (
    _NAMED,
    b"a" * 3799,
)
_BODY = b'%b"finish_reason":"length"}],%b}' % (_WHOLE, USAGE)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


_ASKS = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    b"authorization: Bearer x\r\nuser-agent: bench\r\n"
)


def _chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


def _event(rest: bytes) -> bytes:
    return _chunk(b'data: {"object":"chat.completion.chunk",%b%b}\n\n' % (_NAMED, rest))


_TOKEN = _event(b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]')
_END = _event(b'"choices":[],%b' % USAGE) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def answer(shape: str, chunks: int) -> list[bytes]:
    """Return the reads in which an answer arrives from its engine."""
    if shape in WHOLE:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_BODY)
        return [head + _BODY]
    return [_HEAD + _TOKEN * chunks + _END] if shape == "burst" else [_HEAD, *[_TOKEN] * chunks, _END]


def _turn(shape: str, session: int, turn: int) -> bytes:
    """Return a later turn of a conversation: 3 KB of instructions and question plus 512 bytes, or a hundred times that,
    per turn.
    """
    times = 100 if shape == "long" else 1
    said = "alpha beta gamma delta " * 64 * times
    asked = f'{{"role":"user","content":"{session} {turn // 5} {said}"}}'
    more = said[: 230 * times]
    for _ in range(turn % 5):
        asked += f',{{"role":"assistant","content":"{more}"}},{{"role":"user","content":"{more}"}}'
    streams = "" if shape in WHOLE else STREAMS
    body = f'{{"model":"bench","max_tokens":64,{streams}"user":"s{session}-{turn // 5}",'
    whole = f'{body}"messages":[{{"role":"system","content":"{said}"}},{asked}]}}'.encode()
    return b"%bcontent-length: %d\r\n\r\n%b" % (_ASKS, len(whole), whole)


def requests(shape: str, count: int, first: int = 0) -> list[bytes]:
    """Return requests that alternate between sessions."""
    return [_turn(shape, number % SESSIONS, number // SESSIONS) for number in range(first, first + count)]


class _Transport:
    def __init__(self, stage: "Stage") -> None:
        self.stage = stage
        self.protocol: Any = None
        self.closing = False
        self._socket = socket.socket()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": ("127.0.0.1", 1), "socket": self._socket}.get(name, default)

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closing:
            self.closing = True
            self._socket.close()
            self.stage.loop.call_soon(self.protocol.connection_lost, None)


class _Engine(_Transport):
    def write(self, data: bytes) -> None:
        self.stage.loop.call_soon(self._answer, iter(self.stage.answer))

    def writelines(self, data: Sequence[bytes]) -> None:
        self.write(data[-1])

    def _answer(self, parts: Iterator[bytes]) -> None:
        part = next(parts, None)
        if part is not None and not self.closing:
            self.protocol.data_received(part)
            self.stage.loop.call_soon(self._answer, parts)


class _Client(_Transport):
    _looks = False

    def write(self, data: bytes) -> None:
        self.stage.sent += data if self.stage.keeps else b""
        self.stage.refused += data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200 ")
        if not self._looks:
            self._looks = True
            self.stage.loop.call_soon(self._look)

    def _look(self) -> None:
        self._looks = False
        last = self.protocol._last
        if last is None or last.response_complete:
            self.stage.answered(self)


class Stage:
    """The router with its clients and engines."""

    def __init__(self, shape: str, chunks: int) -> None:
        self.shape, self.answer = shape, answer(shape, chunks)
        self.loop = asyncio.get_running_loop()
        self.keeps, self.sent = False, b""  # bytes that the clients received
        self.refused = 0  # answers that took another path
        self._asked: list[bytes] = []
        self._made = self._left = 0
        self._over = self.loop.create_future()
        source = FileSource(URL.format(9), None, "bench", "router-1")
        pool = source.pools.get_or_add(POOL)
        instances = [
            PublishedInstance(id=f"i{n}", epoch=1, url=URL.format(9 + n), state="ready", routable=True)
            for n in range(4)
        ]
        pool.take_fleet(FleetValue(at=time.time(), model="bench", instances=tuple(instances)))
        source.pools.changed()
        for endpoint in pool.endpoints.values():
            for _ in range(CLIENTS):
                self._keep_connection(endpoint.upstream)
        self.router = Router(source)
        self._server = HttpServer(self.router, 1.0)
        self._clients = [self._connected() for _ in range(CLIENTS)]

    def _connected(self) -> _Client:
        client = _Client(self)
        client.protocol = self._server._protocol()
        client.protocol.connection_made(client)
        return client

    def _keep_connection(self, upstream: ConnectionPool) -> None:
        """Give the router a connection that it seems to have kept open, so that it opens none."""
        connection, transport = Connection(upstream, self.loop), _Engine(self)
        transport.protocol = connection
        connection.connection_made(transport)  # type: ignore[arg-type]
        upstream.give_back(connection)

    def prepare(self, count: int) -> None:
        self.router.recorder.pending.clear()
        self._asked = requests(self.shape, count, self._made)[::-1]
        self._made += count

    async def play(self) -> None:
        """Serve the prepared requests."""
        self._left, self._over = len(self._asked), self.loop.create_future()
        for client in self._clients:
            self._ask(client)
        await self._over
        assert not self.refused

    def _ask(self, client: _Client) -> None:
        if self._asked:
            asked = self._asked.pop()
            for start in range(0, len(asked), READ):
                self.loop.call_soon(client.protocol.data_received, asked[start : start + READ])

    def answered(self, client: _Client) -> None:
        self._left -= 1
        if not self._left:
            self._over.set_result(None)
        self._ask(client)

    def close(self) -> None:
        for client in self._clients:
            client.abort()
        for pool in self.router.pools.all():
            pool.close()


async def staged(shape: str, warm: int = 400, chunks: int = CHUNKS) -> Stage:
    stage = Stage(shape, chunks)
    stage.prepare(warm)
    await stage.play()
    return stage


async def counted(shape: str, count: int = 200, chunks: int = CHUNKS) -> Counter[str]:
    """Count the router's Python calls for the given number of requests, by function."""
    stage = await staged(shape, chunks=chunks)
    stage.prepare(count)
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(_COUNTED) and not code.co_filename.startswith(_TESTS)
        if (
            event == "call" and ours and not code.co_qualname.startswith("Deadlines._")
        ):  # Deadlines runs by a timer, not for a request
            calls[f"{code.co_filename.removeprefix(_COUNTED[0])}:{code.co_qualname}"] += 1

    sys.setprofile(note)
    try:
        await stage.play()
    finally:
        sys.setprofile(None)
    stage.close()
    await asyncio.sleep(0)
    return calls


async def _under_valgrind(shape: str, count: int) -> None:
    def control(*words: str) -> None:
        subprocess.run(["callgrind_control", *words, str(os.getpid())], stdout=subprocess.DEVNULL)

    stage = await staged(shape, 128)
    stage.prepare(count)
    control("-i", "on")
    await stage.play()
    control("-i", "off")
    os._exit(0)  # do not count the end of the process


async def _train(_: str, count: int) -> None:
    for shape in ("unary", "burst", "paced", "long"):
        stage, traffic = Stage(shape, CHUNKS), TrafficRecorder(Counter())
        stage.prepare(count // 20 if shape == "long" else count)
        await stage.play()
        for call in stage.router.recorder.pending:
            traffic.entry(call)
            encoded(call, "router-1")
        stage.close()
        await asyncio.sleep(0)


async def _profiled(shape: str, count: int) -> None:
    calls = await counted(shape, count)
    print(f"{shape}: {sum(calls.values()) / count:.1f} calls of Python functions a request")
    for name, n in calls.most_common():
        if n >= count / 8:
            print(f"{n / count:6.1f} {name}")


if __name__ == "__main__":
    tame_garbage_collection()
    run = {"--instructions": _under_valgrind, "--train": _train}.get(sys.argv[-1], _profiled)
    uvloop.run(run(sys.argv[1], int(sys.argv[2])))
