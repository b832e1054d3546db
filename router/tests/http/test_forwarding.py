"""Requests reach an engine, and its answers reach the client, unchanged."""

import json
import re
import time

import pytest

from router.contract.api_paths import CLASSLESS, LIMITS, ROUTED, WITH_FILES
from router.contract.redis import redis_keys
from router.tests.engine import ANSWER, events, hang_up, reply, stream
from router.tokenize.prompt import RENDERERS

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8},
    "/v1/embeddings": {"input": "hello"},
    "/pooling": {"messages": [{"role": "user", "content": "hello"}]},
    "/classify": {"input": ["hello", "world"]},
    "/v1/classify": {"input": "hello"},
    "/v1/decisions": {"input": "hello", "questions": [{"type": "predicate", "instructions": "Is it polite?"}]},
    "/rerank": {"query": "hello", "documents": ["world", {"content": []}]},
    "/v1/rerank": {"query": "hello", "documents": ["world"]},
    "/v2/rerank": {"query": "hello", "documents": []},
    "/score": {"text_1": "hello", "text_2": ["world"]},
    "/v1/score": {"text_1": ["hello"], "text_2": 7},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1, 2]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/audio/speech": {"input": "hello", "voice": "alloy"},
    **{path: {} for path in WITH_FILES},  # sent as JSON, which some engines accept; test_media.py sends forms
    "/v1/images/generations": {"prompt": "hello", "n": 1},
}
STREAMED = tuple(LIMITS)


def test_every_served_endpoint_is_tested():
    assert set(BODIES) == set(RENDERERS)


@pytest.mark.parametrize(("method", "path"), sorted(ROUTED))
async def test_a_whole_answer_is_returned_byte_for_byte(world, method, path):
    w = await world(reply(ANSWER | {"text": "ünïcode"}, 200, "x-engine: 7"))
    response = await w.client.request(method, path, json={"model": "llama", **BODIES[path]})
    assert response.status_code == 200
    assert response.content == json.dumps(ANSWER | {"text": "ünïcode"}).encode()
    assert response.headers["x-engine"] == "7"
    assert (w.engines[0].received[0].method, w.engines[0].received[0].target) == ("POST", path)


@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_is_returned_byte_for_byte(world, path):
    w = await world(None)
    body = {"model": "llama", "stream": True, "stream_options": {"include_usage": True}, **BODIES[path]}
    response = await w.client.post(path, json=body)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.content == b"".join(events())


@pytest.mark.parametrize("path", sorted(CLASSLESS))
async def test_requests_outside_every_class_are_explained_but_not_counted_as_warm(world, path):
    w = await world(None)
    response = await w.client.post(path, json={"model": "llama", **BODIES[path]})
    assert (await w.receipt(response))["prompt_tokens"] == 0
    assert "demo" not in w.router.recorder.classes(time.time())
    assert w.router.recorder.outcomes()["demo", "unknown", "ok"] == 1


@pytest.mark.parametrize("path", [path for path in BODIES if path not in LIMITS])
async def test_only_requests_that_generate_text_are_recorded_as_traffic(world, path):
    w = await world(None)
    await w.receipt(await w.client.post(path, json={"model": "llama", **BODIES[path]}))
    await w.receipt(await w.ask())
    assert w.published.client.xlen(redis_keys.TRAFFIC) == 1


async def test_the_body_reaches_the_engine_unchanged(world):
    w = await world(None)
    raw = b'{ "model":"llama",\n "prompt" : "h\\u00e9llo", "x": 1.0 }'
    await w.client.post("/v1/completions", content=raw)
    assert w.engines[0].received[0].body == raw


async def test_requests_take_turns_under_round_robin(world):
    w = await world(None, None)
    names = [(await w.ask()).headers["x-weir-instance"] for _ in range(4)]
    assert sorted(names) == ["demo-0", "demo-0", "demo-1", "demo-1"]
    assert names[:2] == names[2:]


async def test_a_connection_is_reused(world):
    w = await world(None)
    for _ in range(5):
        assert (await w.ask()).status_code == 200
        assert (await w.ask(stream=True)).status_code == 200
    assert w.engines[0].accepted == 1


async def test_the_query_is_passed_on(world):
    w = await world(None)
    await w.client.post("/v1/completions?a=1&b=%20", json={"model": "llama", "prompt": "x"})
    assert w.engines[0].received[0].target == "/v1/completions?a=1&b=%20"


CODEX = {"x-codex-window-id": "s:0"}
TOO_LONG = {"error": {"message": "This model's maximum context length is 64 tokens.", "code": 400}}
BARE_TOO_LONG = {"message": "The input (70 tokens) is longer than the model's context length"}
OF_OTHERS = [
    "The decoder prompt (length 64) plus the number of requested output tokens (at least 1) is longer than the maximum "
    "model length of 64.",
    "Input length (70 tokens) exceeds the maximum allowed length (64 tokens). Use a shorter input or enable "
    "--allow-auto-truncate.",
    "The sum of prompt length (60.0), query length (0) max_tokens (16) should not exceed max_seq_len (64)",
    "The sum of prompt length (70), query length (0) should not exceed max_num_tokens (64)",
]
MISTAKE = {"error": {"message": "another mistake"}}
COMPACTS, GIVES_UP = "context_length_exceeded", "invalid_prompt"
ERROR_IN_200 = stream([b"event: error\ndata: %b\n\n" % json.dumps(TOO_LONG).encode()])


@pytest.mark.parametrize(
    ("engine", "result", "code"),
    [
        (reply(TOO_LONG, 400), "client_error", COMPACTS),
        (reply(BARE_TOO_LONG, 400), "client_error", COMPACTS),
        *((reply({"message": words}, 400), "client_error", COMPACTS) for words in OF_OTHERS),
        (ERROR_IN_200, "client_error", COMPACTS),
        (reply(MISTAKE, 400), "client_error", ""),
        (reply(MISTAKE, 404), "client_error", GIVES_UP),
        (reply(MISTAKE, 413), "client_error", GIVES_UP),
        (reply(MISTAKE, 500), "failed_alike", GIVES_UP),
        (hang_up, "failed_alike", GIVES_UP),
        (reply(MISTAKE, 429), "refused", ""),
        (reply(MISTAKE, 503), "refused", ""),
    ],
)
async def test_codex_learns_from_an_event_that_it_would_repeat_a_request_or_must_compact(world, engine, result, code):
    w = await world(engine, engine)
    body = {"model": "llama", "input": "hello"}
    plain = [await w.client.post("/v1/responses", json=body | {"stream": True})]
    plain.append(await w.client.post("/v1/responses", json=body, headers=CODEX))
    assert min(answer.status_code for answer in plain) >= 400
    response = await w.client.post("/v1/responses", json=body | {"stream": True}, headers=CODEX)
    receipt = await w.receipt(response)
    assert (receipt["result"], receipt["status"]) == (result, 200 if code else plain[0].status_code)
    if not code:
        assert response.status_code == plain[0].status_code
        return
    assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")
    kind, data = response.text.removesuffix("\n\n").split("\n")
    failed = json.loads(data.removeprefix("data: "))["response"]
    assert (kind, failed["status"], failed["error"]["code"]) == ("event: response.failed", "failed", code)
    assert re.search("length|another mistake|closed the connection", failed["error"]["message"])


@pytest.mark.parametrize(
    ("engine", "status", "code"),
    [
        (reply(MISTAKE, 500), 500, "failed_alike"),
        (hang_up, 502, "failed_alike"),
        (reply(MISTAKE, 501), 501, "engine_refused"),
        (reply(MISTAKE, 400), 400, ""),
        (reply(MISTAKE, 503), 503, ""),
    ],
)
async def test_qwen_code_learns_from_an_event_that_it_would_repeat_a_request(world, engine, status, code):
    w = await world(engine, engine)
    qwen = {"user-agent": "QwenCode/0.24.4 (linux; x64)"}
    body = {"stream": True, "messages": [{"role": "user", "content": "x"}]}
    plain = await w.ask("/v1/chat/completions", **body)
    assert plain.status_code == status
    answer = await w.ask("/v1/chat/completions", **body, headers=qwen)
    assert answer.status_code == (200 if code else status)
    if code:
        error = json.loads(answer.text.removeprefix("data: "))["error"]
        assert error["code"] == code
        assert (await w.receipt(answer))["outcome"] == "client_error"


async def test_codex_learns_from_an_event_that_no_pool_serves_the_model_it_names(world):
    w = await world(None)
    body = {"model": "gpt-5", "input": "hello", "stream": True}
    response = await w.client.post("/v1/responses", json=body, headers=CODEX)
    failed = json.loads(response.text.partition("data: ")[2])["response"]
    assert (response.status_code, failed["model"], failed["error"]["code"]) == (200, "gpt-5", GIVES_UP)
    assert "known: llama" in failed["error"]["message"]
    assert (await w.receipt(response))["code"] == "model_not_found"
