"""The HTTP server alone, in front of a tiny application, on real sockets."""

import asyncio
import gc
import weakref
from contextlib import asynccontextmanager

import pytest

from router.http import errors, request_limits, server
from router.http.errors import ErrorResponse
from router.http.server import HttpServer, listen
from router.request_path import ROUTER
from router.tests.http.test_request_limits import Client, code


class App:
    """An application that echoes the request; `/wait…` waits for permission, `/fail` raises an error."""

    def __init__(self):
        self.may = asyncio.Event()
        self.seen = []
        self.stopped = False

    async def start(self):
        pass

    async def stop(self):
        self.stopped = True

    async def handle(self, incoming, client):
        self.seen.append(incoming)
        if incoming.path == "/fail":
            raise ZeroDivisionError
        try:
            body = await client.read()
        except ErrorResponse as refusal:
            lines, told = errors.answer(incoming.path, refusal, "")
            client.start(refusal.status, lines)
            client.end(told)
            return
        if incoming.path.startswith("/wait"):
            await self.may.wait()
        told = f"{incoming.method} {incoming.path} {incoming.query.decode()} {body.decode()}".encode()
        client.start(200, b"content-length: %d\r\n" % len(told))
        client.end(told)


class Served:
    def __init__(self, app, server, port):
        self.app, self.server, self.port = app, server, port
        self.clients = []

    async def connect(self):
        self.clients.append(Client(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.clients[-1]

    async def until(self, true):
        async with asyncio.timeout(20):
            while not true():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(grace_s=5.0):
    app = App()
    server = HttpServer(app, grace_s)
    listener = listen("127.0.0.1", 0)
    await server.start([listener])
    served = Served(app, server, listener.getsockname()[1])
    try:
        yield served
    finally:
        for client in served.clients:
            client.writer.close()
        if not app.stopped:
            await server.stop()


@pytest.fixture
async def served():
    async with serving() as made:
        yield made


def get(path, more=b"", method=b"GET"):
    return b"%b %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (method, path.encode(), more)


def post(path, body):
    return get(path, b"content-length: %d\r\n" % len(body), b"POST") + body


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/v1/models", "/v1/models", ""),
        ("/v1/models/a%2Fb?x=%20y", "/v1/models/a/b", "x=%20y"),
        ("http://router:80/v1/models?x", "/v1/models", "x"),
        ("/a#b", "/a", ""),
    ],
)
async def test_a_target_is_split_into_path_and_query(served, target, path, query):
    client = await served.connect()
    client.send(get(target))
    assert (await client.answer())[2].decode() == f"GET {path} {query} "


async def test_a_target_without_a_path_is_a_bad_request(served):
    client = await served.connect()
    client.send(b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n")
    assert (await client.answer())[0] == 400
    assert await client.closed() == b""


async def test_a_client_that_expects_100_continue_gets_it_once(served):
    client = await served.connect()
    client.send(get("/", b"content-length: 2\r\nexpect: 100-Continue\r\n", b"POST"))
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"a")
    await asyncio.sleep(0.02)
    client.send(b"b")
    assert (await client.answer())[2] == b"POST /  ab"


async def test_http_1_0_is_answered_and_closed(served):
    client = await served.connect()
    client.send(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
    assert (await client.answer())[1]["connection"] == "close"
    assert await client.closed() == b""


async def test_a_request_on_which_the_application_fails_is_a_500_and_the_next_one_is_served(served, caplog):
    client = await served.connect()
    client.send(get("/fail") + get("/next"))
    status, headers, body = await client.answer()
    assert (status, headers["content-type"], code(body)) == (500, "application/json", "internal_error")
    assert (await client.answer())[0] == 200
    assert "ZeroDivisionError" in caplog.text


async def test_an_idle_connection_is_closed_even_if_it_sends_blank_lines(served, monkeypatch):
    monkeypatch.setattr(request_limits, "KEEP_ALIVE_S", 0.2)
    client = await served.connect()
    client.send(get("/"))
    await client.answer()
    for _ in range(3):
        client.send(b"\r\n")
        await asyncio.sleep(0)
    assert await client.closed() == b""


async def test_requests_pipelined_before_an_incomplete_one_are_all_answered(served, monkeypatch):
    monkeypatch.setattr(request_limits, "HEAD_S", 0.1)
    client = await served.connect()
    client.send(get("/wait1") + get("/wait2") + b"GET /half HTTP/1.1\r\nhost:")
    await asyncio.sleep(0.3)
    served.app.may.set()
    assert [(await client.answer())[2] for _ in range(2)] == [b"GET /wait1  ", b"GET /wait2  "]
    assert await client.closed() == b""


async def test_garbage_in_the_body_of_a_pipelined_request_fails_only_that_request(served):
    client = await served.connect()
    client.send(get("/wait1") + get("/wait2") + get("/bad", b"transfer-encoding: chunked\r\n", b"POST") + b"zz\r\n")
    await served.until(lambda: served.app.seen)
    served.app.may.set()
    assert [(await client.answer())[2] for _ in range(2)] == [b"GET /wait1  ", b"GET /wait2  "]
    assert await client.closed() == b""
    assert [incoming.path for incoming in served.app.seen] == ["/wait1", "/wait2"]


async def test_a_connection_with_too_many_waiting_requests_is_not_read_until_there_are_fewer(served, monkeypatch):
    monkeypatch.setattr(request_limits, "BODY_S", 0.1)
    client = await served.connect()
    client.send(b"".join(get(f"/wait{number}") for number in range(10)) + post("/last", b"x" * 1_000_000))
    await asyncio.sleep(0.3)  # the last request's body is late only because the router does not read it
    served.app.may.set()
    answers = [await client.answer() for _ in range(11)]
    assert answers[-1][2].startswith(b"POST /last  xxx")


@pytest.mark.skipif(ROUTER.runs(), reason="a weak reference to a compiled protocol ends the process")
@pytest.mark.parametrize("requests", [b"", get("/a") * 2, get("/a")[:-2]])
async def test_a_closed_connection_leaves_no_work_for_the_garbage_collector(served, requests):
    client = await served.connect()
    await served.until(lambda: served.server.connections)
    connection = weakref.ref(next(iter(served.server.connections)))
    client.writer.write(requests)
    await served.until(lambda: len(served.app.seen) == requests.count(b"\r\n\r\n"))
    gc.disable()
    try:
        client.writer.close()
        await served.until(lambda: connection() is None)
    finally:
        gc.enable()


async def test_a_stop_closes_idle_connections_and_marks_responses_as_last(served, monkeypatch):
    idle, busy, late = [await served.connect() for _ in range(3)]
    for client in (idle, late):
        client.send(get("/"))
        await client.answer()
    busy.send(get("/wait"))
    await served.until(lambda: len(served.app.seen) == 3)
    monkeypatch.setattr(server, "LINGER_S", 0.5)
    stopping = asyncio.ensure_future(served.server.stop())
    await served.until(lambda: served.server.closing)
    late.send(get("/late"))
    assert (await late.answer())[1]["connection"] == "close"
    assert await idle.closed() == b""
    served.app.may.set()
    assert (await busy.answer())[1]["connection"] == "close"
    await stopping
    assert served.app.stopped
    with pytest.raises(ConnectionRefusedError):
        await served.connect()


async def test_a_stop_waits_no_longer_than_its_grace_period():
    async with serving(grace_s=0.1) as served:
        client = await served.connect()
        client.send(get("/wait"))
        await served.until(lambda: served.app.seen)
        await asyncio.wait_for(served.server.stop(), 30)
        assert await client.closed() == b""
