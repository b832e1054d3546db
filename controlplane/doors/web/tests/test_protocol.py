"""Limits on a client's connection, on a real uvicorn with raw clients."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn

from controlplane.doors.web import protocol, room
from controlplane.doors.web.protocol import BoundedProtocol

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class Echo:
    """Answers with the headers and the size of the body; counts its requests."""

    def __init__(self) -> None:
        self.requests = 0
        self.answer = b""
        self.wait = asyncio.Event()
        self.server: uvicorn.Server | None = None
        self.wait.set()

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": f"got {(await receive())['type']}"})
            return
        self.requests += 1
        size = 0
        while True:
            message = await receive()
            size += len(message.get("body", b""))
            if not message.get("more_body"):
                break
        await self.wait.wait()
        body = self.answer or f"{size} {sorted(name.decode() for name, _ in scope['headers'])}".encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def app() -> Echo:
    return Echo()


@pytest.fixture
async def port(app: Echo) -> AsyncIterator[int]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http=BoundedProtocol, ws="websockets-sansio", ws_max_size=100, lifespan="off", log_config=None,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = app.server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    running = asyncio.create_task(server._serve([listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    yield listener.getsockname()[1]
    app.wait.set()
    server.should_exit = True
    await running


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(-1), 30)
        return b""

    async def status(self) -> int:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        self.body = await self.reader.readexactly(length)
        return int(head.split()[1])


@pytest.fixture
async def connect(port: int) -> AsyncIterator:
    made = []

    async def connected(address: str = "127.0.0.1") -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))
        made.append(client)
        return client

    yield connected
    for client in made:
        client.writer.close()


async def asked(connect, data: bytes) -> tuple[int, Client]:
    client = await connect()
    await client.send(data)
    return await client.status(), client


async def test_requests_are_answered_one_after_another(connect):
    status, client = await asked(connect, GET)
    assert (status, client.body) == (200, b"0 ['host']")
    await client.send(GET + GET)
    assert [await client.status(), await client.status()] == [200, 200]


@pytest.mark.parametrize("step", [1_000_000, 16_000], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    "part", [b"GET /%b HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nA: %b\r\n\r\n"], ids=["target", "header"]
)
async def test_headers_that_are_too_large_are_refused_and_not_buffered(connect, app, part, step):
    client = await connect()
    data = part % (b"a" * 200_000)
    for start in range(0, len(data), step):
        await client.send(data[start : start + step])
        await asyncio.sleep(0)
    answer = await client.rest()
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    assert app.requests == 0


async def test_large_headers_within_the_limit_are_accepted(connect):
    status, _ = await asked(connect, b"GET / HTTP/1.1\r\nHost: a\r\nA: %b\r\n\r\n" % (b"a" * 60_000))
    assert status == 200


async def test_bytes_that_are_not_http_are_refused(connect):
    client = await connect()
    await client.send(b"\x16\x03\x01 hello\r\n\r\n")
    assert (await client.rest()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost"], ids=["nothing", "a part"])
async def test_a_head_that_does_not_end_in_time_ends_the_connection(connect, monkeypatch, sent):
    monkeypatch.setattr(protocol, "HEAD_S", 0.2)
    client = await connect()
    await client.send(sent)
    assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


async def test_single_bytes_do_not_keep_an_idle_connection_open(connect, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    _, client = await asked(connect, GET)
    ended = asyncio.create_task(client.rest())
    for _ in range(60):
        await client.send(b"\r\n")
        await asyncio.wait([ended], timeout=0.05)
        if ended.done():
            return
    pytest.fail("the connection is still open")


async def test_only_a_body_that_stops_arriving_times_out(connect, monkeypatch):
    monkeypatch.setattr(protocol, "BODY_S", 0.6)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    slow, steady = await connect(), await connect()
    await slow.send(head % 10 + b"abc")
    await steady.send(head % 60_000)
    for _ in range(60):
        await asyncio.sleep(0.012)
        await steady.send(b"x" * 1_000)
    assert await steady.status() == 200
    assert (await slow.rest()).startswith(b"HTTP/1.1 408 ")


async def test_chunk_extensions_do_not_extend_the_time_limit(connect, monkeypatch):
    monkeypatch.setattr(protocol, "BODY_S", 0.3)
    client = await connect()
    await client.send(CHUNKED + b"1;a=")
    ended = asyncio.create_task(client.rest())
    for _ in range(60):
        await client.send(b"a" * 60_000)
        await asyncio.wait([ended], timeout=0.05)
        if ended.done():
            return
    pytest.fail("the connection is still open")


async def test_trailers_do_not_become_headers(connect):
    status, client = await asked(connect, CHUNKED + b"1\r\na\r\n0\r\nAuthorization: Bearer x\r\nCookie: s=1\r\n\r\n")
    assert (status, client.body) == (200, b"1 ['host', 'transfer-encoding']")
    await client.send(GET)
    assert await client.status() == 200


async def test_many_trailers_end_the_connection(connect):
    client = await connect()
    await client.send(CHUNKED + b"0\r\n" + b"".join(b"a%d: %b\r\n" % (n, b"x" * 100) for n in range(200)))
    assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


@pytest.fixture
def busy(connect, app):
    """Occupies a connection with a request until `app.wait` is set."""

    async def build(address: str = "127.0.0.1") -> Client:
        app.wait.clear()
        client, before = await connect(address), app.requests
        await client.send(GET)
        while app.requests == before:
            await asyncio.sleep(0.01)
        return client

    return build


async def test_connections_beyond_the_bound_are_refused_and_served_again_later(connect, busy, app, monkeypatch):
    monkeypatch.setattr(room, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(room, "SHARE", 1.0)
    held = [await busy() for _ in range(2)]
    assert (await (await connect()).rest()).startswith(b"HTTP/1.1 503 ")
    app.wait.set()
    assert [await client.status() for client in held] == [200, 200]
    assert (await asked(connect, GET))[0] == 200


async def test_the_oldest_half_open_connection_is_closed_first_then_the_oldest_idle_one(connect, busy, monkeypatch):
    monkeypatch.setattr(room, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(room, "SHARE", 1.0)
    idle = (await asked(connect, GET))[1]
    halves = [await connect() for _ in range(2)]
    for half in halves:
        await half.send(b"GET / HTTP/1.1\r\n")
    await busy()
    for gone in (*halves, idle):
        await busy()
        assert (await gone.rest()).startswith(b"HTTP/1.1 503 ")
    assert (await (await connect()).rest()).startswith(b"HTTP/1.1 503 ")


async def test_a_flood_of_incomplete_requests_keeps_no_client_out(connect, monkeypatch):
    monkeypatch.setattr(room, "MAX_CONNECTIONS", 10)
    for _ in range(60):
        await (await connect()).send(b"GET / HTTP/1.1\r\n")
    assert [(await asked(connect, GET))[0] for _ in range(20)] == [200] * 20


async def test_one_address_can_have_only_part_of_the_connections(connect, busy, app, monkeypatch):
    monkeypatch.setattr(room, "MAX_CONNECTIONS", 4)
    for _ in range(2):
        await busy("127.0.0.1")
    assert (await (await connect()).rest()).startswith(b"HTTP/1.1 503 ")
    await busy("127.0.0.2")


async def test_a_trusted_proxy_can_have_all_connections(connect, busy, monkeypatch):
    monkeypatch.setattr(room, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(room, "is_trusted", lambda address, proxies: True)
    for _ in range(3):
        await busy()
    assert (await (await connect()).rest()).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize(
    ("address", "trusted"), [("10.1.2.3", True), ("10.9.0.1", True), ("192.168.1.1", False), ("::1", False), ("", True)]
)
def test_trusted_proxies_are_addresses_and_networks(address, trusted):
    assert room.is_trusted(address, ("10.1.2.3", "10.9.0.0/16", "proxy.example")) is trusted
    assert room.is_trusted(address, ("*",))


def test_the_limit_is_at_most_half_of_the_open_files(monkeypatch):
    monkeypatch.setattr(room.resource, "getrlimit", lambda _: (256, 4096))
    assert room.max_connections() == 128


async def test_a_client_that_reads_nothing_is_disconnected(connect, app, monkeypatch):
    monkeypatch.setattr(protocol, "STALL_S", 0.3)
    app.answer = b"x" * 20_000_000
    client = await connect()
    client.writer.transport.pause_reading()
    await client.send(GET)
    await asyncio.sleep(0.05)
    while app.server.server_state.connections:
        await asyncio.sleep(0.02)
    client.writer.transport.resume_reading()
    assert len(await client.rest()) < len(app.answer)


async def test_a_client_that_reads_slowly_gets_its_answer(connect, app, monkeypatch):
    monkeypatch.setattr(protocol, "STALL_S", 5.0)
    app.answer = b"x" * 20_000_000
    client = await connect()
    await client.send(GET)
    await asyncio.sleep(0.2)
    assert await client.status() == 200


async def test_an_invalid_request_behind_a_running_one_does_not_answer_that_one(connect, app):
    app.wait.clear()
    client = await connect()
    await client.send(GET)
    while not app.requests:
        await asyncio.sleep(0.005)
    await client.send(b"A: %b" % (b"a" * 100_000))
    assert await client.rest() == b""


async def test_a_websocket_may_stay_open_longer_than_a_request(connect, monkeypatch):
    for name in ("HEAD_S", "BODY_S"):
        monkeypatch.setattr(protocol, name, 0.4)
    client = await connect()
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    await client.send(GET[:-2] + upgrade + b"Sec-WebSocket-Version: 13\r\n\r\n")
    assert b"101" in await client.reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(0.5)
    await client.send(b"\x81\x82\0\0\0\0hi")
    assert b"got websocket.receive" in await client.rest()


async def test_a_large_websocket_message_ends_the_socket(connect):
    client = await connect()
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    await client.send(GET[:-2] + upgrade + b"Sec-WebSocket-Version: 13\r\n\r\n")
    await client.reader.readuntil(b"\r\n\r\n")
    await client.send(b"\x81\xfe\x01\x00\0\0\0\0" + b"x" * 256)
    answer = await client.rest()
    assert b"\x88" in answer  # a close frame
    assert b"got websocket.receive" not in answer
