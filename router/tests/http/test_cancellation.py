"""If a client leaves, the router cancels its request at the engine at once."""

import asyncio
import json

import httpx

from router.tests.engine import first_then_wait, hang, write_head


async def abandon(w, **body):
    """Send a request and disconnect once the engine has it."""
    asking = asyncio.ensure_future(w.ask(**body))
    await w.until(lambda: w.engines[0].received, "the engine has the request")
    await asyncio.sleep(0.05)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_client_that_leaves_before_the_first_byte_cancels_the_request(world):
    w = await world(hang)
    await abandon(w)
    await asyncio.wait_for(w.engines[0].cancelled.wait(), 30)


async def head_then_wait(engine, request, writer):
    write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
    await writer.drain()
    await engine.release.wait()


async def test_a_client_that_leaves_a_stream_without_an_event_cancels_it(world):
    """sglang-router 0.3.2 and vllm-router 0.1.17 wait for the first event: findings/routers-left-streams.sh."""
    w = await world(head_then_wait)
    await abandon(w, stream=True)
    await asyncio.wait_for(w.engines[0].cancelled.wait(), 30)


async def test_a_client_that_leaves_in_the_middle_of_a_stream_cancels_it(world):
    w = await world(first_then_wait)
    async with w.client.stream("POST", "/v1/completions", json={"model": "llama", "prompt": "x", "stream": True}) as s:
        await anext(s.aiter_raw())
    await asyncio.wait_for(w.engines[0].cancelled.wait(), 30)


async def test_the_request_of_a_client_that_left_is_recorded_and_no_longer_counts_as_load(world):
    w = await world(hang)
    await abandon(w, headers={"x-request-id": "left"})
    await asyncio.wait_for(w.engines[0].cancelled.wait(), 30)
    endpoint = w.router.pools.get("demo").endpoints["demo-0"]
    await w.until(lambda: (endpoint.requests, endpoint.prefill_tokens, endpoint.decodes) == (0, 0, 0))
    await w.until(lambda: w.published.client.exists("weir:receipt:left"))
    receipt = json.loads(w.published.client.get("weir:receipt:left"))
    assert receipt["outcome"] == "cancelled"
    assert receipt["output_tokens"] is None


async def test_a_client_that_leaves_is_not_a_failure_of_the_engine(world):
    w = await world(hang, failure__breaker_failures=1)
    await abandon(w)
    await asyncio.wait_for(w.engines[0].cancelled.wait(), 30)
    assert w.router.pools.get("demo").endpoints["demo-0"].breaker.state == "closed"


async def test_a_client_that_leaves_the_queue_frees_its_place(world):
    w = await world(hang, admission__max_inflight_per_instance=1)
    running = asyncio.ensure_future(w.ask())
    await w.until(lambda: w.engines[0].received)
    waiting = [asyncio.ensure_future(w.ask()) for _ in range(2)]
    queue = w.router.pools.get("demo").queue
    await w.until(lambda: len(queue) == 2)
    waiting[0].cancel()
    await w.until(lambda: len(queue) == 1)
    w.engines[0].release.set()
    assert [(await each).status_code for each in (running, waiting[1])] == [200, 200]


async def test_a_client_that_never_sends_its_body_leaves_nothing_behind(world):
    w = await world(None)
    _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(w.client.base_url).port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    await w.until(lambda: w.router.recorder.outcomes().get(("", "unknown", "cancelled")) == 1)
    assert not w.engines[0].received
