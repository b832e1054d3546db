"""Limits on clients' connections, and on how long a client may read nothing, on real sockets."""

import asyncio
import contextlib
import json
import resource
import socket

import httpx
import pytest

from router.app import Router
from router.http import request_limits
from router.http.clients import MOST_FILES, RESERVED, ClientConnections, most_clients, raise_descriptor_limit
from router.http.server import NEW_S, HttpServer, listen
from router.options import OptionError, clients, parse
from router.sync.redis_source import RedisSource
from router.tests.conftest import entry
from router.tests.engine import engine, write_chunk, write_head
from router.tests.http.test_protocol import App, Served, get, post
from router.tests.http.test_request_limits import Client, code
from router.tests.http.test_request_limits import post as completion

ENDLESS = json.dumps({"model": "llama", "prompt": "x", "stream": True}).encode()


@pytest.fixture
async def limited():
    """Run a server with the given limits."""
    made = []

    async def build(**limits):
        app, clients = App(), ClientConnections(**limits)
        server = HttpServer(app, 0.1, clients)
        listener = listen("127.0.0.1", 0)
        await server.start([listener])
        made.append(Served(app, server, listener.getsockname()[1]))
        return made[-1]

    yield build
    for served in made:
        for client in served.clients:
            client.writer.close()
        await served.server.stop()


async def test_a_connection_beyond_the_limit_is_refused_and_earlier_ones_continue(limited):
    served = await limited(limit=2)
    running = [await served.connect() for _ in range(2)]
    for client in running:
        client.send(get("/wait"))
    await served.until(lambda: len(served.app.seen) == 2)
    status, headers, body = await (await served.connect()).answer()
    assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
    assert code(body) == "too_many_connections"
    served.app.may.set()
    assert [(await client.answer())[0] for client in running] == [200, 200]
    clients = served.server.clients
    assert (len(clients.open), clients.refused, clients.closed) == (2, 1, 0)
    assert "all 2 connections for clients were in use" in clients.degraded()[0]


@pytest.mark.parametrize("sent", [b"", b"GET /half HTTP/1.1\r\nhost:"])
async def test_the_connection_that_has_been_idle_longest_is_closed_for_a_new_one(limited, sent):
    served = await limited(limit=5)
    kept = [await served.connect() for _ in range(2)]
    for client in kept:
        client.send(get("/"))
        await client.answer()
    running = await served.connect()
    running.send(get("/wait"))
    await served.until(lambda: len(served.app.seen) == 3)
    new = [await served.connect() for _ in range(2)]
    for client in new:
        client.send(sent)
    await served.until(lambda: len(served.server.clients.open) == 5)
    await asyncio.sleep(NEW_S)
    for gone in (*new, *kept):  # in this order
        await asyncio.sleep(0.02)
        fresh = await served.connect()
        fresh.send(get("/wait"))
        assert await gone.closed() == b""
    assert code((await (await served.connect()).answer())[2]) == "too_many_connections"
    served.app.may.set()
    assert [(await client.answer())[0] for client in (running, fresh)] == [200, 200]
    assert (served.server.clients.refused, served.server.clients.closed) == (1, 4)


async def test_a_flood_of_incomplete_heads_does_not_shut_out_other_clients(limited):
    served = await limited(limit=10)
    for _ in range(60):
        (await served.connect()).send(b"GET / HTTP/1.1\r\n")
    for _ in range(5):
        client = await served.connect()
        client.send(get("/"))
        assert (await client.answer())[0] == 200
    assert len(served.server.clients.open) <= 10


@pytest.mark.parametrize("slow_s", [0.0, 60.0])
async def test_connections_whose_bodies_do_not_arrive_are_closed_for_others(limited, monkeypatch, slow_s):
    monkeypatch.setattr(request_limits, "SLOW_S", slow_s)
    served = await limited(limit=2)
    half, running = [await served.connect() for _ in range(2)]
    running.send(get("/wait"))
    half.send(post("/half", b"x" * 100)[:-1])
    await served.until(lambda: served.server.clients.body_bytes)
    fresh = await served.connect()
    fresh.send(get("/"))
    served.app.may.set()
    given_up, kept = (half, [running, fresh]) if not slow_s else (fresh, [running])
    status, _, body = await given_up.answer()
    assert (status, code(body)) == (503, "too_many_connections")
    assert [(await client.answer())[0] for client in kept] == [200] * len(kept)


def slow_socket(port):
    """Connect a client whose kernel buffer is almost empty."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", port))
    made.setblocking(False)
    return made


async def read_all(client):
    size = 0
    with contextlib.suppress(ConnectionResetError):
        while part := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            size += len(part)
    return size


class Large(App):
    """An application that answers with 20 MB."""

    async def handle(self, incoming, client):
        data = b"x" * 20_000_000
        client.start(200, b"content-length: %d\r\n" % len(data))
        client.end(data)


async def large(limits):
    app = Large()
    server = HttpServer(app, 0.1, limits)
    listener = listen("127.0.0.1", 0)
    await server.start([listener])
    return server, listener.getsockname()[1]


@pytest.mark.parametrize("keep_alive", [b"", b"connection: close\r\n"])
async def test_a_client_that_reads_nothing_is_disconnected(keep_alive):
    limits = ClientConnections(stall_s=0.2)
    server, port = await large(limits)
    with slow_socket(port) as client:
        client.sendall(get("/", keep_alive))
        async with asyncio.timeout(30):
            while not limits.stalled:
                await asyncio.sleep(0.02)
            while limits.open:
                await asyncio.sleep(0.02)
    await server.stop()


async def test_when_too_many_bytes_wait_the_client_that_has_read_nothing_for_longest_is_disconnected():
    limits = ClientConnections(most_unread_bytes=50_000_000)
    server, port = await large(limits)
    with slow_socket(port) as first, slow_socket(port) as second, slow_socket(port) as third:
        for client in (first, second, third):
            before = len(server.unread)
            client.sendall(get("/"))
            async with asyncio.timeout(30):
                while len(server.unread) == before and not limits.unread:
                    await asyncio.sleep(0.01)
        assert (limits.unread, len(server.unread)) == (1, 2)
        assert await read_all(first) < 20_000_000
    async with asyncio.timeout(30):
        while len(server.unread):  # closed connections no longer count
            await asyncio.sleep(0.01)
    await server.stop()


@pytest.mark.slow
async def test_a_client_that_reads_slowly_is_not_disconnected():
    limits = ClientConnections(stall_s=1.5)
    server, port = await large(limits)
    loop = asyncio.get_running_loop()
    with slow_socket(port) as client:  # meanwhile the kernel takes nothing more from the transport
        client.sendall(get("/"))
        for _ in range(40):
            await asyncio.sleep(0.05)
            assert await loop.sock_recv(client, 100_000)
        assert limits.stalled == 0
    await server.stop()


async def test_a_stop_does_not_wait_for_an_idle_client_with_unread_bytes(monkeypatch):
    monkeypatch.setattr(request_limits, "KEEP_ALIVE_S", 0.05)
    limits = ClientConnections(stall_s=0.3)
    server, port = await large(limits)
    with slow_socket(port) as client:
        client.sendall(get("/"))
        async with asyncio.timeout(30):
            while limits.stalled == 0 or limits.open:
                await asyncio.sleep(0.02)
    await server.stop()


@pytest.mark.slow
async def test_a_stream_that_its_client_does_not_read_is_cancelled_and_frees_its_capacity(published, redis_url):
    async def endless(made, request, writer):
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        while True:
            write_chunk(writer, b'data: {"choices": [{"text": "' + b"x" * 100_000 + b'"}]}\n\n')
            await writer.drain()

    async with engine(endless) as made:
        published.policy()
        published.fleet(entry("demo-0", made.url))
        limits = ClientConnections(stall_s=0.3)
        router = Router(RedisSource(redis_url, "router-1", "http://x"), limits)
        server = HttpServer(router, 0.1, limits)
        listener = listen("127.0.0.1", 0)
        await server.start([listener])
        port = listener.getsockname()[1]
        with slow_socket(port) as client:
            client.sendall(completion(body=ENDLESS))
            async with asyncio.timeout(30):
                while not made.received or made.connections:
                    await asyncio.sleep(0.01)
        endpoint = router.pools.get("demo").endpoints["demo-0"]
        async with asyncio.timeout(30), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as asking:
            while endpoint.requests:
                await asyncio.sleep(0.01)
            page = (await asking.get("/metrics")).text
        assert 'weir_router_client_connections_ended_total{reason="stalled"} 1.0' in page
        assert endpoint.breaker.state == "closed"
        await server.stop()


async def test_a_client_that_resets_its_connection_leaves_no_error(limited, caplog):
    served = await limited()
    for sent in (b"garbage\r\n\r\n", get("/wait"), get("/") * 5, get("/wait") * 5):
        client = socket.create_connection(("127.0.0.1", served.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.sendall(sent)
        await asyncio.sleep(0.01)
        client.close()
        await asyncio.sleep(0.02)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_the_limit_allows_two_files_per_client_in_addition_to_the_reserve():
    assert most_clients(1024) == (1024 - RESERVED) // 2
    assert most_clients(10) == 1


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 4096), 4096),
        ((1024, resource.RLIM_INFINITY), MOST_FILES),
        ((1024, 10 * MOST_FILES), MOST_FILES),
        ((2 * MOST_FILES, 10 * MOST_FILES), 2 * MOST_FILES),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_needed(monkeypatch, limits, raised):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda what, pair: asked.append(pair))
    assert raise_descriptor_limit() == raised
    assert asked == [(raised, limits[1])]


@pytest.mark.parametrize("wanted", [0, 1_000_000])
def test_a_limit_of_connections_above_that_of_files_is_refused_in_one_line(monkeypatch, wanted):
    monkeypatch.setattr("router.options.raise_descriptor_limit", lambda: 1024)
    given = parse(["--instances", "http://a:1", "--max-connections", str(wanted)])
    with pytest.raises(OptionError) as refused:
        clients(given)
    assert str(refused.value) == (f"--max-connections {wanted}: allowed are 1 to 480, with 1024 open files (ulimit -n)")
    given = parse(["--instances", "http://a:1", "--max-connections", "9", "--client-stall", "5"])
    assert (clients(given).limit, clients(given).stall_s) == (9, 5.0)


async def test_two_simultaneous_clients_beyond_the_limit_close_two_idle_ones(limited):
    served = await limited(limit=4)
    idle = [await served.connect() for _ in range(4)]
    for client in idle:
        client.send(get("/"))
        await client.answer()
    fresh = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", served.port) for _ in range(3)))
    for streams in fresh:
        served.clients.append(Client(*streams))
        served.clients[-1].send(get("/fresh"))
    assert [(await client.answer())[0] for client in served.clients[-3:]] == [200] * 3
    assert len(served.server.clients.open) <= 4


async def test_bodies_beyond_the_total_limit_are_refused_until_others_have_ended(limited):
    served = await limited(most_body_bytes=250_000)
    holding, late = [await served.connect() for _ in range(2)], await served.connect()
    for client in holding:
        client.send(post("/wait", b"x" * 100_000))
    await served.until(lambda: served.server.clients.body_bytes == 200_000)
    late.send(post("/late", b"y" * 100_000))
    status, headers, body = await late.answer()
    assert (status, headers["retry-after"], code(body)) == (503, "1", "too_many_bodies")
    late.send(post("/late", b"y" * 40_000))
    assert (await late.answer())[0] == 200
    served.app.may.set()
    assert [(await client.answer())[0] for client in holding] == [200, 200]
    assert served.server.clients.body_bytes == 0
    late.send(post("/late", b"y" * 100_000))
    assert (await late.answer())[0] == 200


async def test_a_client_with_many_large_bodies_leaves_capacity_for_other_clients(limited):
    served = await limited(most_body_bytes=1_000_000)

    async def handle(incoming, client):
        incoming.key_id = incoming.query.decode()
        await served.app.handle(incoming, client)

    async def sent(target, size):
        client = await served.connect()
        client.send(post(target, b"x" * size))
        return client

    served.server.handle = handle
    holding = [await sent("/wait?a", 160_000) for _ in range(5)]
    clients = served.server.clients
    await served.until(lambda: clients.shares == {"a": 800_000})
    status, _, body = await (await sent("/wait?a", 160_000)).answer()
    assert (status, code(body)) == (503, "too_many_bodies")
    assert (await (await sent("/small?a", 10_000)).answer())[0] == 200
    assert (await (await sent("/other?b", 160_000)).answer())[0] == 200
    served.app.may.set()
    assert [(await client.answer())[0] for client in holding] == [200] * 5
    await served.until(lambda: (clients.body_bytes, clients.shares) == (0, {}))


async def test_small_bodies_that_a_client_withholds_count_against_that_client(limited):
    served = await limited(most_body_bytes=100_000)
    clients = served.server.clients
    for held in range(10_000, 90_000, 10_000):
        client = await served.connect()
        client.send(post("/half", b"x" * 10_001)[:-1])
        await served.until(lambda held=held: clients.body_bytes == held)
    assert clients.shares == {"127.0.0.1": 80_000}
    late, whole = [await served.connect() for _ in range(2)]
    late.send(post("/half", b"x" * 10_001)[:-1])
    assert code((await late.answer())[2]) == "too_many_bodies"
    whole.send(post("/whole", b"x" * 10_000))
    assert (await whole.answer())[0] == 200


@pytest.mark.parametrize("sent", [1, 2, 7])
async def test_bodies_of_clients_that_leave_are_released(limited, sent):
    served = await limited()
    client = await served.connect()
    client.send(post("/wait", b"x" * 70_000) * sent + post("/half", b"x" * 70_000)[:-1])
    await served.until(lambda: served.server.clients.body_bytes >= 50_000)
    client.writer.close()
    await served.until(lambda: not served.server.clients.open and not served.server.tasks)
    assert (served.server.clients.body_bytes, served.server.clients.shares) == (0, {})


async def test_the_body_of_a_request_that_is_refused_early_is_not_held(limited):
    served = await limited(most_body_bytes=1_000)
    client = await served.connect()
    client.send(post("/a", b"x" * 2_000) + post("/b", b"x" * 900))
    assert [(await client.answer())[0] for _ in range(2)] == [503, 200]
    await served.until(lambda: served.server.clients.body_bytes == 0)
