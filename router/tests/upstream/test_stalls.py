"""An answer that falls silent after it began is abandoned; one that is only slow is not."""

import asyncio
import json

import pytest

from router.tests.engine import ANSWER, events, first_then_wait, hang_up, stream, write_chunk, write_head
from router.tests.test_outcomes import BODIES
from router.upstream.connection import HIGH_WATER
from router.upstream.stalls import CHECK_S


def demo(w):
    return w.router.pools.get("demo")


async def let_pass(w, seconds):
    """Run the number of checks, with their effects, that this time would bring, in addition to the router's own."""
    for _ in range(round(seconds / CHECK_S)):
        w.router.proxy.stalls.check()
    await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_stream_that_stalls_ends_with_an_error_event_and_is_cancelled_on_its_engine(world):
    w = await world(first_then_wait, failure__stream_idle_timeout_s=1)
    response = await w.ask("/v1/chat/completions", stream=True)
    assert response.status_code == 200
    first, last = response.content.removesuffix(b"\n\n").split(b"\n\n", 1)
    assert first + b"\n\n" == events()[0]
    error = json.loads(last.strip().removeprefix(b"data: "))["error"]
    assert error["code"] == "upstream_timeout"
    assert "no part of the answer arrived for 1 s" in error["message"]
    async with asyncio.timeout(30):
        await w.engines[0].cancelled.wait()
    receipt = await w.receipt(response)
    assert (receipt["outcome"], receipt["code"], receipt["status"]) == ("error", "upstream_timeout", 200)
    endpoint = demo(w).endpoints["demo-0"]
    assert (endpoint.requests, endpoint.decodes) == (0, 0)


@pytest.mark.slow
async def test_stalls_open_the_breaker_although_every_answer_had_begun(world):
    w = await world(first_then_wait, None, failure__stream_idle_timeout_s=1, failure__breaker_failures=2)
    stalled = 0
    while stalled < 2:
        stalled += b"upstream_timeout" in (await w.ask(stream=True)).content
    assert demo(w).endpoints["demo-0"].breaker.state == "open"


async def test_a_slow_stream_is_not_abandoned(world):
    w = await world(first_then_wait, failure__stream_idle_timeout_s=3600)
    body = {"model": "llama", "prompt": "x", "stream": True}
    async with w.client.stream("POST", "/v1/completions", json=body) as response:
        chunks = response.aiter_raw()
        await anext(chunks)
        await let_pass(w, 3500)
        w.engines[0].release.set()
        rest = b"".join([chunk async for chunk in chunks])
    assert rest.endswith(b"data: [DONE]\n\n")


EARLY = {
    "/v1/chat/completions": b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n',
    "/v1/completions": b": keep-alive\n\n",
    "/v1/messages": b'event: ping\ndata: {"type": "ping"}\n\n',
    "/v1/responses": b'data: {"type": "response.created", "response": {"status": "in_progress"}}\n\n',
}


@pytest.mark.parametrize("path", EARLY)
@pytest.mark.parametrize("hangs", [True, False])
async def test_the_limit_of_a_prefill_holds_until_the_first_content_whatever_comes_before(world, path, hangs):
    """An early sign of life from a hung engine's API server does not extend the limit; a long prompt gets its time."""

    async def early(engine, request, writer):
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        for _ in range(3):
            write_chunk(writer, EARLY[path])
            await writer.drain()
            await asyncio.sleep(0.02)
            await let_pass(w, 1000)
        for part in events():
            write_chunk(writer, part)
        writer.write(b"0\r\n\r\n")
        await (engine.release.wait() if hangs else writer.drain())

    limits = {"failure__first_byte_timeout_s": 2500 if hangs else 3500, "failure__stream_idle_timeout_s": 300}
    w = await world(early, None, **limits)
    while not w.engines[0].received:
        response = await w.ask(path, stream=True, **BODIES[path])
    assert (response.status_code, response.headers["x-weir-instance"]) == (200, f"demo-{int(hangs)}")
    attempts = (await w.receipt(response))["attempts"]
    assert attempts[0]["error"] == ("no content within 2500 s of the first byte" if hangs else "")


async def test_each_byte_restarts_the_time(world):
    async def steady(engine, request, writer):
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        for number in range(6):
            write_chunk(writer, events()[0] + b": still there %d\n\n" % number)
            await writer.drain()
            await let_pass(w, 2400)
        write_chunk(writer, events()[-1])
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    w = await world(steady, failure__stream_idle_timeout_s=3600)
    response = await w.ask(stream=True)
    assert response.content.endswith(b": still there 5\n\n" + events()[-1])


@pytest.mark.slow
async def test_a_whole_answer_that_stalls_is_retried_elsewhere(world):
    async def half(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf of it")
        await writer.drain()
        await engine.release.wait()

    w = await world(half, None, failure__stream_idle_timeout_s=1)
    for _ in range(2):
        response = await w.ask()
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")


@pytest.mark.slow
async def test_a_whole_answer_that_stalls_everywhere_is_a_timeout(world):
    async def half(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf of it")
        await writer.drain()
        await engine.release.wait()

    w = await world(half, failure__stream_idle_timeout_s=1, failure__retries=0)
    response = await w.ask()
    assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_timeout")


async def test_a_client_that_does_not_read_does_not_count_as_a_silent_engine(world):
    size = 64 * HIGH_WATER
    parts = [b'data: {"choices": [{"text": "' + b"x" * 65_536 + b'"}]}\n\n'] * (size // 65_536) + events()[-1:]
    w = await world(stream(parts), failure__stream_idle_timeout_s=1)
    body = {"model": "llama", "prompt": "x", "stream": True}
    async with w.client.stream("POST", "/v1/completions", json=body) as response:
        chunks = response.aiter_raw()
        received = len(await anext(chunks))
        connection = next(iter(demo(w).endpoints["demo-0"].upstream.connections))
        await w.until(lambda: connection._paused, "the router reads no further")
        await let_pass(w, 10)
        received += sum([len(chunk) async for chunk in chunks])
    assert received == sum(len(part) for part in parts)


async def test_nothing_is_watched_while_nothing_is_in_flight(world):
    w = await world(None, hang_up)
    await asyncio.gather(*(w.ask(stream=i % 2 == 0) for i in range(10)))
    assert not w.router.proxy.stalls._limits


def says_it_lives(begin, sign):
    """Begin an answer, then send only keep-alive bytes until released, for 160 s of the router's time."""

    async def behave(engine, request, writer):
        write_head(writer, 200, f"content-type: {begin}", "transfer-encoding: chunked")
        for part in (events()[0] if "event" in begin else b"", *[sign] * 4):
            write_chunk(writer, part) if part else None
            await writer.drain()
            await asyncio.sleep(0.02)
            engine.pass_time()
        await engine.release.wait()

    return behave


async def test_an_event_whose_end_arrives_separately_is_recognised(world):
    async def in_two(engine, request, writer):
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        for part in [*events()[:1] * 6, *events()[-1:]]:
            for half in (part[:-2], part[-2:]):
                write_chunk(writer, half)
                await writer.drain()
                await asyncio.sleep(0.02)
            await let_pass(w, 40)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    w = await world(in_two)
    assert (await w.ask(stream=True)).content == events()[0] * 6 + events()[-1]


EMPTY_DELTA = b'data: {"id": "x", "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": null}]}\n\n'


@pytest.mark.parametrize("sign", [b": ping\n\n", b'event: ping\ndata: {"type": "ping"}\n\n', b"\n", EMPTY_DELTA])
async def test_signs_of_life_do_not_extend_a_stream_whose_content_has_ended(world, sign):
    w = await world(says_it_lives("text/event-stream", sign))
    w.engines[0].pass_time = lambda: [w.router.proxy.stalls.check() for _ in range(40)]
    response = await w.ask(stream=True)
    assert b"no part of the answer arrived for 120 s" in response.content
    assert (await w.receipt(response))["result"] == "failed_after_content"


@pytest.mark.parametrize("path", [*BODIES, "/v1/embeddings"])
async def test_signs_of_life_do_not_keep_a_whole_answer_from_being_retried(world, path):
    w = await world(says_it_lives("application/json", b" \n"), None, failure__first_byte_timeout_s=100)
    w.engines[0].pass_time = lambda: [w.router.proxy.stalls.check() for _ in range(40)]
    for _ in range(2):
        response = await w.ask(path, **BODIES.get(path, {}))
        assert (response.status_code, response.headers["x-weir-instance"]) == (200, "demo-1")
    assert w.engines[0].received


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_whole_answer_that_begins_with_signs_of_life_has_the_time_of_a_silent_engine(world, hangs):
    async def late(engine, request, writer):
        write_head(writer, 200, "content-type: application/json", "transfer-encoding: chunked")
        whole = json.dumps(ANSWER).encode()
        for part, silent_s in ((b"  ", 280), (whole[:9], 130 if hangs else 110), (whole[9:], 0)):
            write_chunk(writer, part)
            await writer.drain()
            await asyncio.sleep(0.05)
            await let_pass(w, silent_s)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    w = await world(late, None)
    while not w.engines[0].received:
        response = await w.ask()
    assert (response.status_code, response.headers["x-weir-instance"]) == (200, f"demo-{int(hangs)}")


async def test_streamed_speech_has_the_time_of_a_prefill_until_its_first_sound(world):
    async def late(engine, request, writer):
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        for _ in range(2):
            write_chunk(writer, b": ping\n\n")
            await writer.drain()
            await asyncio.sleep(0.02)
            await let_pass(w, 130)
        write_chunk(writer, b'data: {"type": "speech.audio.delta", "audio": "AAAA"}\n\n')
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    w = await world(late)
    response = await w.ask("/v1/audio/speech", input="hello", voice="x", stream_format="sse")
    assert (response.status_code, b"AAAA" in response.content) == (200, True)
