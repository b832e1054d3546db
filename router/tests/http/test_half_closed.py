"""A client that has finished sending gets its answer, and one that has left is detected, on real sockets."""

import asyncio
import json

import pytest

from router.http import protocol
from router.tests.engine import events, first_then_wait, hang, write_chunk, write_head
from router.tests.http.test_protocol import get, post, served  # noqa: F401 - a fixture
from router.tests.http.test_request_limits import connect  # noqa: F401 - a fixture
from router.tests.http.test_request_limits import post as completion

STREAM = json.dumps({"model": "llama", "prompt": "x", "stream": True}).encode()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(protocol, "ANSWER_S", 0.02)
    monkeypatch.setattr(protocol, "PROBES_S", 0.05)


async def final(client):
    """Return the next final response, skipping interim ones."""
    while True:
        status, headers, body = await client.answer()
        if status != 100:
            return status, headers, body


async def test_a_client_that_has_finished_sending_gets_its_answer(served):  # noqa: F811
    client = await served.connect()
    client.send(post("/wait", b"body"))
    client.writer.write_eof()
    await asyncio.sleep(0.3)
    served.app.may.set()
    assert (await final(client))[2] == b"POST /wait  body"
    assert await client.closed() == b""


async def test_a_client_that_finished_before_the_first_read_gets_all_answers(served):  # noqa: F811
    client = await served.connect()
    client.send(get("/wait1") + get("/wait2") + post("/three", b"3"))
    client.writer.write_eof()
    served.app.may.set()
    assert [(await final(client))[2] for _ in range(3)] == [b"GET /wait1  ", b"GET /wait2  ", b"POST /three  3"]
    assert await client.closed() == b""


async def test_an_incomplete_request_is_dropped_and_those_before_it_are_answered(served):  # noqa: F811
    client = await served.connect()
    client.send(get("/wait") + get("/half", b"content-length: 9\r\n", b"POST"))
    client.writer.write_eof()
    await asyncio.sleep(0.05)
    served.app.may.set()
    assert (await final(client))[2] == b"GET /wait  "
    assert await client.closed() == b""
    assert [incoming.path for incoming in served.app.seen] == ["/wait"]


@pytest.mark.parametrize("sent", [b"", b"GET / HT", get("/half", b"content-length: 9\r\n", b"POST")])
async def test_a_client_that_closes_in_the_middle_of_its_request_is_not_awaited(served, sent):  # noqa: F811
    client = await served.connect()
    client.send(sent)
    client.writer.write_eof()
    assert await client.closed() == b""


async def test_a_client_of_http_1_0_that_has_finished_sending_gets_no_interim_response(served):  # noqa: F811
    client = await served.connect()
    client.send(b"GET /wait HTTP/1.0\r\n\r\n")
    client.writer.write_eof()
    await asyncio.sleep(0.2)
    served.app.may.set()
    assert (await client.closed()).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_stream_continues_with_comments_while_the_engine_is_silent(world, connect):  # noqa: F811
    w = await world(first_then_wait)
    client = await connect(w)
    client.send(completion(body=STREAM))
    client.writer.write_eof()
    early = await asyncio.wait_for(client.reader.readuntil(b":\n\n"), 30)
    w.engines[0].release.set()
    sent = early + await client.closed()
    head, _, body = sent[sent.index(b"HTTP/1.1 200") :].partition(b"\r\n\r\n")
    assert b"text/event-stream" in head
    parts = body.split(b"\r\n")[1::2]
    assert b":\n\n" in parts
    assert b"".join(part for part in parts if part != b":\n\n") == b"".join(events(usage=False))


async def test_no_comment_is_sent_in_the_middle_of_an_event(world, connect):  # noqa: F811
    async def half_an_event(engine, request, writer):
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        write_chunk(writer, events()[0] + b'data: {"choices"')
        await writer.drain()
        await engine.release.wait()
        write_chunk(writer, b":[]}\n\n" + events()[-1])
        writer.write(b"0\r\n\r\n")

    w = await world(half_an_event)
    client = await connect(w)
    asked = json.dumps({"model": "llama", "prompt": "x", "stream": True, "stream_options": {"include_usage": True}})
    client.send(completion(body=asked.encode()))
    client.writer.write_eof()
    await asyncio.sleep(0.3)
    w.engines[0].release.set()
    sent = await client.closed()
    assert b'data: {"choices"\r\n14\r\n:[]}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n' in sent


@pytest.mark.parametrize("finished_first", [True, False])
async def test_a_client_that_left_is_detected_and_its_request_cancelled(world, connect, finished_first):  # noqa: F811
    w = await world(hang)
    client = await connect(w)
    client.send(completion())
    await w.until(lambda: w.engines[0].received)
    if finished_first:
        client.writer.write_eof()
        await asyncio.sleep(0.2)
        assert not w.engines[0].cancelled.is_set()
    client.writer.close()
    await asyncio.wait_for(w.engines[0].cancelled.wait(), 30)
