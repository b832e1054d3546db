"""Limits on slow clients and large heads, upgrades and pipelining, on real sockets."""

import asyncio
import json

import httpx
import pytest

from router.http.request_limits import MAX_HEAD
from router.tests.engine import first_then_wait, hang, reply

BODY = json.dumps({"model": "llama", "prompt": "x"}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def post(request_id="", more=b"", body=BODY):
    named = b"x-request-id: %b\r\n" % request_id.encode() if request_id else b""
    return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (HEAD, named, more, len(body), body)


class Client:
    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    def send(self, data):
        self.writer.write(data)

    async def answer(self):
        """Return (status, headers, body) of the next answer, which has a content length."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    async def closed(self):
        """Return the remaining bytes until the router closes the connection."""
        return await asyncio.wait_for(self.reader.read(), 30)


@pytest.fixture
async def connect():
    opened = []

    async def make(world):
        port = httpx.URL(world.client.base_url).port
        opened.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
        return opened[-1]

    yield make
    for client in opened:
        client.writer.close()


def code(body):
    return json.loads(body)["error"]["code"]


async def test_an_idle_new_connection_is_closed(world, connect, monkeypatch):
    monkeypatch.setattr("router.http.request_limits.HEAD_S", 0.1)
    client = await connect(await world(None))
    status, _, body = await client.answer()
    assert (status, code(body)) == (408, "head_timeout")
    assert await client.closed() == b""


async def test_a_head_that_trickles_in_is_cut_off(world, connect, monkeypatch):
    monkeypatch.setattr("router.http.request_limits.HEAD_S", 0.3)
    client = await connect(await world(None))

    async def trickle():
        for _ in range(1000):
            client.send(b"X")
            await asyncio.sleep(0.02)

    client.send(HEAD)
    trickling = asyncio.ensure_future(trickle())
    status, _, body = await client.answer()
    trickling.cancel()
    assert (status, code(body)) == (408, "head_timeout")


async def test_the_head_of_a_later_request_is_bounded_too(world, connect, monkeypatch):
    monkeypatch.setattr("router.http.request_limits.HEAD_S", 0.3)
    client = await connect(await world(None))
    client.send(post())
    assert (await client.answer())[0] == 200
    client.send(b"POST /v1/comp")
    assert (await client.answer())[0] == 408


async def test_a_body_that_trickles_in_is_cut_off_and_leaves_nothing_behind(world, connect, monkeypatch):
    monkeypatch.setattr("router.http.request_limits.BODY_S", 0.3)
    w = await world(None)
    client = await connect(w)
    client.send(HEAD + b"content-length: 1000\r\n\r\n")
    for _ in range(5):
        client.send(b" ")
        await asyncio.sleep(0.02)
    status, _, body = await client.answer()
    assert (status, code(body)) == (408, "body_timeout")
    await w.until(lambda: w.router.recorder.outcomes().get(("", "unknown", "cancelled")) == 1)
    assert not w.engines[0].received


async def test_a_body_that_follows_its_refusal_is_not_read_forever(world, connect, monkeypatch):
    monkeypatch.setattr("router.http.request_limits.BODY_S", 0.3)
    client = await connect(await world(None))
    client.send(HEAD + b"content-length: 99000000\r\n\r\n")
    status, _, body = await client.answer()
    assert (status, code(body)) == (413, "body_too_large")
    client.send(b"more")
    assert await client.closed() == b""


async def test_a_request_that_runs_for_longer_than_the_limits_is_not_cut_off(world, connect, monkeypatch):
    monkeypatch.setattr("router.http.request_limits.HEAD_S", 0.1)
    monkeypatch.setattr("router.http.request_limits.BODY_S", 0.1)
    w = await world(hang)
    client = await connect(w)
    client.send(post())
    await w.until(lambda: w.engines[0].received)
    await asyncio.sleep(0.3)
    w.engines[0].release.set()
    assert (await client.answer())[0] == 200


@pytest.mark.parametrize("reads", [1, 40])
async def test_a_head_over_the_limit_is_refused(world, connect, reads):
    client = await connect(await world(None))
    head = HEAD + b"x-large: " + b"y" * (10 * MAX_HEAD) + b"\r\n\r\n"
    size = -(-len(head) // reads)
    for start in range(0, len(head), size):
        client.send(head[start : start + size])
        await asyncio.sleep(0.001)
    status, _, body = await client.answer()
    assert (status, code(body)) == (431, "headers_too_large")


async def test_a_head_within_the_limit_is_served(world, connect):
    client = await connect(await world(None))
    client.send(post(more=b"x-large: " + b"y" * (MAX_HEAD - 1000) + b"\r\n"))
    assert (await client.answer())[0] == 200


async def test_a_large_body_in_one_read_does_not_count_as_a_large_head(world, connect):
    client = await connect(await world(None))
    client.send(post(body=json.dumps({"model": "llama", "prompt": "x" * 200_000}).encode()))
    assert (await client.answer())[0] == 200


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"hello\r\n\r\n"]
)
async def test_bytes_that_are_not_http_get_a_400(world, connect, garbage):
    client = await connect(await world(None))
    client.send(garbage)
    status, _, body = await client.answer()
    assert (status, code(body)) == (400, "invalid_http")
    assert await client.closed() == b""


async def test_a_websocket_is_refused_and_the_connection_continues(world, connect):
    client = await connect(await world(None))
    asked = b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    client.send(asked + b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
    status, _, body = await client.answer()
    assert (status, code(body)) == (400, "no_websockets")
    client.send(post())
    assert (await client.answer())[0] == 200


async def test_an_offer_of_http2_is_ignored_and_the_following_request_is_not_lost(world, connect):
    """`curl --http2` makes this offer with each request; the router must not parse the following data as another
    protocol."""
    client = await connect(await world(None))
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n"
    client.send(post("one", offer) + post("two"))
    assert [(await client.answer())[1]["x-request-id"] for _ in range(2)] == ["one", "two"]


async def test_a_last_request_with_an_offer_of_http2_is_answered(world, connect):
    client = await connect(await world(None))
    client.send(post("one", b"connection: close, Upgrade\r\nupgrade: h2c\r\n"))
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await client.closed() == b""


async def test_pipelined_requests_are_answered_in_order_and_none_is_lost(world, connect):
    async def slower_first(engine, request, writer):
        await asyncio.sleep(0.05 if request.headers["x-request-id"] == "r0" else 0)
        await reply()(engine, request, writer)

    client = await connect(await world(slower_first))
    client.send(b"".join(post(f"r{i}") for i in range(20)))
    answers = [await client.answer() for _ in range(20)]
    assert [headers["x-request-id"] for _, headers, _ in answers] == [f"r{i}" for i in range(20)]
    assert {status for status, _, _ in answers} == {200}


async def test_garbage_after_a_request_does_not_affect_its_answer(world, connect):
    w = await world(hang)
    client = await connect(w)
    client.send(post("one") + post("two") + b"garbage\r\n\r\n")
    await w.until(lambda: w.engines[0].received)
    w.engines[0].release.set()
    assert [(await client.answer())[1]["x-request-id"] for _ in range(2)] == ["one", "two"]
    assert await client.closed() == b""


async def test_a_client_that_leaves_with_requests_pipelined_cancels_the_one_that_runs(world, connect):
    w = await world(first_then_wait)
    client = await connect(w)
    stream = json.dumps({"model": "llama", "prompt": "x", "stream": True}).encode()
    client.send(post("one", body=stream) + post("two"))
    await client.reader.readuntil(b"data: ")
    client.writer.close()
    await asyncio.wait_for(w.engines[0].cancelled.wait(), 30)
    await w.until(lambda: w.router.recorder.outcomes().get(("demo", "warm", "cancelled")) == 1)
    assert len(w.engines[0].received) == 1
