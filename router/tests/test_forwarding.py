"""Requests go to an engine and their answers come back as they are."""

import json

import pytest

from router.tests.engine import USAGE, events, reply

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8},
    "/v1/embeddings": {"input": "hello"},
}
STREAMED = [path for path in BODIES if path != "/v1/embeddings"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_whole_answer_comes_back_byte_for_byte(world, path):
    w = await world(reply({"id": "x", "text": "ünïcode", "usage": USAGE}, 200, "x-engine: 7"))
    response = await w.client.post(path, json={"model": "llama", **BODIES[path]})
    assert response.status_code == 200
    assert response.content == json.dumps({"id": "x", "text": "ünïcode", "usage": USAGE}).encode()
    assert response.headers["x-engine"] == "7"
    assert w.engines[0].received[0].target == path


@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_comes_back_byte_for_byte(world, path):
    w = await world(None)
    body = {"model": "llama", "stream": True, "stream_options": {"include_usage": True}, **BODIES[path]}
    response = await w.client.post(path, json=body)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.content == b"".join(events())


async def test_the_body_goes_to_the_engine_untouched(world):
    w = await world(None)
    raw = b'{ "model":"llama",\n "prompt" : "h\\u00e9llo", "x": 1.0 }'
    await w.client.post("/v1/completions", content=raw)
    assert w.engines[0].received[0].body == raw


async def test_requests_take_turns_under_round_robin(world):
    w = await world(None, None)
    names = [(await w.ask()).headers["x-weir-instance"] for _ in range(4)]
    assert sorted(names) == ["demo-0", "demo-0", "demo-1", "demo-1"]
    assert names[:2] == names[2:]


async def test_a_connection_is_used_again(world):
    w = await world(None)
    for _ in range(5):
        assert (await w.ask()).status_code == 200
        assert (await w.ask(stream=True)).status_code == 200
    assert w.engines[0].accepted == 1


async def test_the_query_is_passed_on(world):
    w = await world(None)
    await w.client.post("/v1/completions?a=1&b=%20", json={"model": "llama", "prompt": "x"})
    assert w.engines[0].received[0].target == "/v1/completions?a=1&b=%20"
