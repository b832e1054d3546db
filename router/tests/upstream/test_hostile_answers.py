"""An engine's malicious answers are limited in memory and time, and count against that engine alone."""

import asyncio
import contextlib
import gc
import itertools
import time
import tracemalloc

import pytest

from router.contract.net.http_client import MAX_HEAD, MAX_HEADERS
from router.pool.learned import MOST_REASONS
from router.telemetry.prefix_metrics import indexes
from router.tests.engine import events, reply, stream
from router.upstream.answer import usage
from router.upstream.answer.stream_tail import StreamTail

HELD = b'{"choices": [{"text": "w"}]}'
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = b"2\r\n{}\r\n"
PIECE = b"x" * 16_384


def endless(begin, piece=PIECE, pieces=10_000):
    """Send 160 MB, or until the router disconnects."""

    async def behave(engine, request, writer):
        writer.write(begin)
        for _ in range(pieces):
            writer.write(piece)
            await writer.drain()
        writer.close()

    return behave


HOSTILE = {
    "a status line without end": endless(b"HTTP/1.1 200 "),
    "garbage instead of a status line": endless(b"\x00\xff\r\n" * 100),
    "a version that does not exist": endless(b"HTTP/9.9 200 OK\r\n\r\n"),
    "a header without end": endless(b"HTTP/1.1 200 OK\r\nx: "),
    "a header's name without end": endless(b"HTTP/1.1 200 OK\r\n"),
    "headers without end": endless(b"HTTP/1.1 200 OK\r\n", b"".join(b"x-%d: y\r\n" % n for n in range(1000))),
    "early hints without end": endless(b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 500),
    "a chunk's extension without end": endless(CHUNKED + b"2;a="),
    "a length beyond all numbers": endless(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n"),
    "two lengths": endless(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
    "another protocol": endless(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
}


@pytest.mark.parametrize("behaviour", HOSTILE.values(), ids=HOSTILE)
async def test_an_unusable_answer_is_retried_on_another_engine(world, behaviour):
    w = await world(behaviour, reply())
    for _ in range(2):
        assert (await w.ask()).status_code == 200
    assert w.engines[0].received, "the hostile one was asked"


@pytest.mark.parametrize("further", [b"HTTP/1.1 500 X\r\n\r\nx", b"HTTP/1.1 200 X\r\ncontent-length: 1\r\n\r\nx", b"x"])
async def test_bytes_after_an_answer_reach_no_client(world, further):
    async def two(engine, request, writer):
        writer.write(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(HELD), HELD) + further)
        await writer.drain()

    w = await world(two)
    answers = [await w.ask("/v1/embeddings") for _ in range(3)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(200, HELD)] * 3


TRAILERS = {
    "a trailer without end": endless(CHUNKED + BODY + b"0\r\nx: "),
    "trailers without end": endless(CHUNKED + BODY + b"0\r\n", b"x: y\r\n" * 1000),
}


@pytest.mark.parametrize("behaviour", TRAILERS.values(), ids=TRAILERS)
async def test_endless_trailers_take_no_memory(world, behaviour):
    w = await world(behaviour, reply())
    await w.ask()
    gc.collect()
    tracemalloc.start()
    try:
        assert (await w.ask()).status_code == 200
        assert (await w.ask()).status_code == 200
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10_000_000


async def test_trailers_are_dropped(world):
    async def behave(engine, request, writer):
        writer.write(CHUNKED + b'd\r\n{"count": 30}\r\n0\r\nset-cookie: a=b\r\nx-weir-instance: other\r\n\r\n')
        await writer.drain()

    w = await world(behave)
    response = await w.ask("/tokenize")
    assert (response.status_code, response.content) == (200, b'{"count": 30}')
    assert "set-cookie" not in response.headers
    assert response.headers["x-weir-instance"] == "demo-0"


async def test_a_head_within_its_limits_is_passed_on(world):
    extra = [f"x-{n}: y" for n in range(MAX_HEADERS - 10)]
    w = await world(reply(None, 200, *extra, f"x-long: {'z' * (MAX_HEAD // 2)}"))
    response = await w.ask()
    assert response.status_code == 200
    assert len(response.headers["x-long"]) == MAX_HEAD // 2


async def test_an_endless_event_passes_with_bounded_memory(world):
    """The client gets it as it arrives; the router does not wait for its end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: "
    w = await world(endless(head, pieces=2_000))
    size = 0
    async with w.client.stream(
        "POST", "/v1/completions", json={"model": "llama", "prompt": "x", "stream": True}
    ) as response:
        tracemalloc.start()
        try:
            async for piece in response.aiter_raw():
                size += len(piece)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert size > 2_000 * len(PIECE)
    assert most < 20_000_000


NO_JSON = {
    "nested without end": b'"usage": ' + b'{"a":' * 800,
    "nested arrays": b'"usage": {"a":' + b"[" * 4000,
    "a thousand of them": b'"usage": {' * 1000,
}
USAGES = {
    "absurd": b'"usage": {"prompt_tokens": 1' + b"0" * 40 + b', "completion_tokens": 1e999}',
    "negative": b'"usage": {"prompt_tokens": -1, "completion_tokens": true}',
}


@pytest.mark.parametrize("end", USAGES.values(), ids=USAGES)
async def test_unusable_usage_counts_as_missing(world, end):
    body = HELD[:-1] + b", " + end + b"}"
    w = await world(json_of(body))
    response = await w.ask()
    assert (response.status_code, response.content) == (200, body)
    receipt = await w.receipt(response)
    assert (receipt["actual_prompt_tokens"], receipt["output_tokens"]) == (None, None)


@pytest.mark.parametrize("end", NO_JSON.values(), ids=NO_JSON)
async def test_an_answer_that_is_not_json_is_a_failure_of_its_engine(world, end):
    w = await world(json_of(HELD[:-1] + b", " + end + b"}"))
    response = await w.ask()
    assert response.status_code == 502
    receipt = await w.receipt(response)
    assert [receipt[key] for key in ("result", "fault", "output_tokens")] == ["failed_before_content", "engine", None]


def json_of(body):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()

    return behave


def test_a_part_that_consists_of_usage_keys_costs_little_time():
    for event in (b'"usage"\n\n', b'"usage"\r\n\r\n', b'data: {"choices":[],"usage":{}}\n\n', b'"usage":{'):
        data = event * (2_000_000 // len(event)) + b"\n\n"
        with deadline(0.5):
            usage.Strip().feed(data)
            tail = StreamTail()
            tail.add(data)
            tail.ended()


@contextlib.contextmanager
def deadline(seconds):
    """Fail if the code inside takes longer in CPU time."""
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


async def test_the_usage_chunk_after_many_other_keys_is_still_removed(world):
    noise = [b'data: {"choices":[{"usage":null}]}\n\n'] * 50
    w = await world(stream([*noise, *events()]))
    response = await w.ask(stream=True)
    assert response.content.count(b'"usage":null') == 50
    assert b"prompt_tokens" not in response.content


async def test_hostile_engines_and_a_good_one_share_a_router(world):
    """Round robin sends requests to each; every request is served."""
    w = await world(*itertools.islice(HOSTILE.values(), 5), reply(), failure__retries=5)
    answers = await asyncio.gather(*(w.ask() for _ in range(12)))
    assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize("status", [301, 302, 304, 307, 308])
async def test_a_redirect_reaches_no_client_and_is_not_followed(world, status):
    async def redirect(engine, request, writer):
        line = b"HTTP/1.1 %d Elsewhere\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n"
        writer.write(line % status)
        await writer.drain()

    w = await world(redirect, reply())
    assert [(await w.ask()).status_code for _ in range(4)] == [200] * 4
    alone = await world(redirect)
    answer = await alone.ask()
    assert (answer.status_code, "location" in answer.headers) == (502, False)
    assert f"it answered {status}: redirects are neither followed nor passed on" in answer.text


@pytest.mark.parametrize("name", ["two lengths", "headers without end", "a version that does not exist"])
async def test_an_answer_that_is_not_http_is_listed_as_refused(world, name):
    w = await world(HOSTILE[name], reply())
    await w.ask()
    endpoint = w.router.pools.get("demo").endpoints["demo-0"]
    assert sum(endpoint.refused.values()) == 1
    assert indexes(w.router.pools.all())["demo-0"].refused == dict(endpoint.refused)


async def test_only_as_many_reasons_are_kept_as_a_page_can_show(world):
    w = await world(reply())
    endpoint = w.router.pools.get("demo").endpoints["demo-0"]
    for number in range(100):
        endpoint.note_refused(f"reason {number}")
    assert (len(endpoint.refused), endpoint.refused["other"]) == (MOST_REASONS + 1, 100 - MOST_REASONS)
