"""Connections are bounded, apply back-pressure for slow clients, and close when idle."""

import asyncio
import time

import httpx
import pytest

from router.tests.engine import events, stream
from router.upstream.connection import HIGH_WATER
from router.upstream.connection_pool import ConnectionPool

ENDING = b'{"choices": [{"text": ""}]}'


async def test_many_requests_leave_nothing_behind_once_they_end(world, monkeypatch):
    monkeypatch.setattr("router.upstream.connection_pool.IDLE_S", 0.1)
    w = await world(None, None)
    await w.ask()
    tasks_before = len(asyncio.all_tasks())
    for _ in range(5):
        await asyncio.gather(*(w.ask(stream=i % 2 == 0) for i in range(20)))
    endpoints = w.router.pools.get("demo").endpoints.values()
    loop = asyncio.get_running_loop()
    for endpoint in endpoints:
        endpoint.upstream.close_idle(loop.time() + 60)
    await w.until(lambda: not any(endpoint.upstream.connections for endpoint in endpoints))
    await w.until(lambda: not any(engine.connections for engine in w.engines))
    assert all((endpoint.requests, endpoint.prefill_tokens, endpoint.decodes) == (0, 0, 0) for endpoint in endpoints)
    await w.until(lambda: len(asyncio.all_tasks()) <= tasks_before + 1)


async def test_a_busy_router_does_not_mistake_its_own_delay_for_an_unreachable_engine(world):
    w = await world(None)
    upstream = ConnectionPool(w.engines[0].url)
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    opening = asyncio.create_task(upstream.open(request, connect_timeout_s=0.1, first_byte_timeout_s=5.0))
    await asyncio.sleep(0)  # the connection attempt has begun
    time.sleep(0.3)
    connection = await opening
    connection.release()
    upstream.close()


async def test_idle_connections_are_closed_after_their_limit(world):
    w = await world(None)
    await w.ask()
    upstream = w.router.pools.get("demo").endpoints["demo-0"].upstream
    now = asyncio.get_running_loop().time()
    upstream.close_idle(now, idle_s=10)
    assert len(upstream.connections) == 1
    upstream.close_idle(now + 11, idle_s=10)
    await w.until(lambda: not upstream.connections)


async def test_a_slow_client_slows_down_the_engine(world):
    """The engine could send 200 MB; the router buffers a bounded part however long the client does not read."""
    sent = 0

    async def flood(engine, request, writer):
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for _ in range(200):
            writer.write(b'data: {"choices": [{"text": "' + b"x" * 1_000_000 + b'"}]}\n\n')
            await writer.drain()
            sent += 1
        writer.close()

    w = await world(flood)
    port = httpx.URL(w.client.base_url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    body = b'{"model":"llama","prompt":"x","stream":true,"stream_options":{"include_usage":true}}'
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    await w.until(lambda: w.engines[0].received)
    before = -1
    while before != sent:  # until no more bytes move
        before = sent
        await asyncio.sleep(0.2)
    assert sent < 40
    connection = next(iter(w.router.pools.get("demo").endpoints["demo-0"].upstream.connections))
    assert len(connection.peek()) <= HIGH_WATER + 256 * 1024
    while await reader.read(1 << 20):
        pass
    writer.close()
    assert sent == 200


async def test_an_engine_that_sends_an_unrequested_answer_loses_the_connection(world):
    async def twice(engine, request, writer):
        await stream(events())(engine, request, writer)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno")
        await writer.drain()

    w = await world(twice)
    for _ in range(4):
        response = await w.ask(stream=True)
        assert (response.status_code, response.content.count(b"[DONE]")) == (200, 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\n\r\n%b" % ENDING,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 27\r\n\r\n%b" % ENDING,
        b"HTTP/1.0 200 OK\r\ncontent-length: 27\r\n\r\n%b" % ENDING,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\n%b\r\n16\r\n%b\r\n0\r\nx-t: 1\r\n\r\n"
        % (ENDING[:5], ENDING[5:]),
    ],
)
async def test_an_answer_may_end_in_every_way_that_http_allows(world, raw):
    async def behave(engine, request, writer):
        writer.write(raw)
        await writer.drain()
        writer.close()

    w = await world(behave)
    response = await w.ask()
    assert (response.status_code, response.content) == (200, ENDING)
    assert (await w.ask()).status_code == 200


async def test_an_answer_without_a_body_is_complete_with_its_head_and_keeps_its_connection(world):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()

    w = await world(behave)
    assert [(await w.ask()).status_code for _ in range(2)] == [502, 502]
    assert w.engines[0].accepted == 1
