"""The router is an ASGI app and behaves the same under another ASGI server."""

import asyncio
import json

import httpx
import pytest
import uvicorn

from router.app import Router
from router.sync.redis_source import RedisSource
from router.tests.conftest import World, entry
from router.tests.engine import engine, events, first_then_wait, hang


@pytest.fixture
async def served(published, redis_url):
    """Serve an engine's behaviour through a `World` behind uvicorn's own HTTP protocol."""
    ends = []

    async def begin(behaviour=None):
        running = engine(behaviour)
        made = await running.__aenter__()
        published.policy(strategy="round_robin")
        published.fleet(entry("demo-0", made.url))
        router = Router(RedisSource(redis_url, "router-1", "http://router"))
        server = uvicorn.Server(uvicorn.Config(router, port=0, http="httptools", log_config=None, ws="none"))
        serving = asyncio.ensure_future(server._serve())
        while not server.started:
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20)
        ends.append((client, server, serving, running))
        return World(router, client, [made], published)

    yield begin
    for client, server, serving, running in ends:
        await client.aclose()
        await running.__aexit__(None, None, None)
        server.should_exit = True
        await serving


async def test_whole_answers_and_streams_pass_unchanged(served):
    w = await served()
    whole = await w.ask()
    assert (whole.status_code, whole.json()["object"]) == (200, "x")
    assert whole.headers["x-weir-instance"] == "demo-0"
    stream = await w.ask(stream=True)
    assert stream.content == b"".join(events(usage=False))
    receipt = await w.receipt(stream)
    assert (receipt["outcome"], receipt["output_tokens"]) == ("ok", 3)


async def test_bodies_beyond_the_limit_of_all_together_are_refused(served):
    w = await served()
    w.router.clients.most_body_bytes = 10_000
    refused = await w.ask(prompt="x" * 10_000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_bodies")
    assert (await w.ask(prompt="x" * 5_000)).status_code == 200
    await w.until(lambda: (w.router.clients.body_bytes, w.router.clients.shares) == (0, {}))


async def test_errors_are_returned_over_asgi(served):
    w = await served()
    assert (await w.client.post("/v1/completions", content=b"no")).json()["error"]["code"] == "invalid_json"
    assert (await w.client.get("/nothing")).status_code == 404
    assert (await w.client.get("/healthz")).json()["id"] == "router-1"


@pytest.mark.parametrize("behaviour", [hang, first_then_wait])
async def test_a_client_that_leaves_cancels_its_request(served, behaviour):
    w = await served(behaviour)
    asking = asyncio.ensure_future(w.ask(stream=True, headers={"x-request-id": "left"}))
    await w.until(lambda: w.engines[0].received)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(20):
        await w.engines[0].cancelled.wait()
    await w.until(lambda: w.published.client.exists("weir:receipt:left"))
    assert json.loads(w.published.client.get("weir:receipt:left"))["outcome"] == "cancelled"


async def test_a_slow_client_slows_down_the_engine(served):
    sent = 0

    async def flood(engine, request, writer):
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for _ in range(100):
            writer.write(b'data: {"choices": [{"text": "' + b"x" * 1_000_000 + b'"}]}\n\n')
            await writer.drain()
            sent += 1
        writer.close()

    w = await served(flood)
    body = {"model": "llama", "prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
    async with w.client.stream("POST", "/v1/completions", json=body) as response:
        chunks = response.aiter_raw()
        await anext(chunks)
        before = -1
        while before != sent:  # until no more bytes move
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 60
        size = sum([len(chunk) async for chunk in chunks])
    assert sent == 100
    assert size > 99_000_000
