import asyncio

import orjson
import pytest

from controlplane.evidence.experiments.replay import completions
from controlplane.evidence.experiments.replay.client import NoAnswer, ReplayAnswer, ReplayClient, _has_content
from controlplane.evidence.experiments.tests.fake_engine import fake_engine


def body(tokens: int = 5, prompt: str = " the and") -> bytes:
    return completions.body_of("fake", prompt, tokens)


async def test_a_streamed_answer_yields_its_times_headers_and_usage():
    async with fake_engine(token_s=0.002) as engine:
        client = ReplayClient(engine.url)
        answer = await client.request("POST", completions.PATH, body(5), {"x-weir-pool": "exp-1-2"})
        client.close()
    assert answer.sent_at < answer.first_at < answer.last_at
    assert answer.headers["x-weir-instance"] == "fake-0"
    assert engine.headers[0]["x-weir-pool"] == "exp-1-2"
    assert completions.ending_of(answer) == completions.RequestEnding("ok", 2, 1, 5, cached_from=(8, 4, 2, 0))


async def test_sequential_requests_share_one_connection():
    async with fake_engine() as engine:
        client = ReplayClient(engine.url)
        for _ in range(3):
            await client.request("POST", completions.PATH, body())
        client.close()
    assert engine.connections == 1


async def test_concurrent_requests_use_separate_connections():
    async with fake_engine(token_s=0.01) as engine:
        client = ReplayClient(engine.url)
        await asyncio.gather(*(client.request("POST", completions.PATH, body()) for _ in range(4)))
        client.close()
    assert engine.connections == 4


@pytest.mark.parametrize(
    ("what", "outcome", "error"),
    [
        ("refuse", "refused", "429 refused on purpose"),
        ("error", "error", "500 errord on purpose"),
        ("reject", "client_error", "400 rejectd on purpose"),
    ],
)
async def test_an_error_status_reports_its_message(what, outcome, error):
    async with fake_engine(behaviour=lambda number, sent: what) as engine:
        client = ReplayClient(engine.url)
        ending = completions.ending_of(await client.request("POST", completions.PATH, body()))
        client.close()
    assert (ending.outcome, ending.error) == (outcome, error)


@pytest.mark.parametrize(("message", "outcome"), [("too long", "client_error"), ("CUDA error: no", "error")])
@pytest.mark.parametrize("first_at", [0.0, 1.0])
def test_an_error_in_the_stream_is_the_engines_only_if_it_blames_the_engine(message, outcome, first_at):
    event = orjson.dumps({"error": {"message": message, "code": 400}})
    answer = ReplayAnswer(0.0, 200, first_at=first_at, tail=bytearray(b"data: %b\n\ndata: [DONE]\n\n" % event))
    assert completions.ending_of(answer).outcome == outcome


async def test_a_stream_that_breaks_off_is_not_an_answer():
    async with fake_engine(behaviour=lambda number, sent: "cut") as engine:
        client = ReplayClient(engine.url)
        with pytest.raises(NoAnswer, match="ended before the answer"):
            await client.request("POST", completions.PATH, body())
        client.close()


async def test_without_a_server_the_request_fails():
    client = ReplayClient("http://127.0.0.1:9")
    with pytest.raises(NoAnswer, match=r"no connection to 127\.0\.0\.1:9"):
        await client.request("GET", "/v1/models")


async def test_a_connection_that_the_server_closed_while_idle_is_replaced():
    async with fake_engine() as engine:
        client = ReplayClient(engine.url)
        await client.request("POST", completions.PATH, body())
        client._idle[0].abort()
        await asyncio.sleep(0)
        answer = await client.request("POST", completions.PATH, body())
        client.close()
    assert answer.status == 200
    assert engine.connections == 2


async def test_a_request_that_takes_too_long_ends_with_a_time_out():
    async with fake_engine(behaviour=lambda number, sent: "hang") as engine:
        client = ReplayClient(engine.url)
        with pytest.raises(TimeoutError):
            await client.request("POST", completions.PATH, body(), timeout_s=0.05)
        client.close()


async def test_the_end_of_a_long_stream_is_enough_to_find_its_usage():
    async with fake_engine() as engine:
        client = ReplayClient(engine.url)
        answer = await client.request("POST", completions.PATH, body(2_000), keep=512)
        client.close()
    assert len(answer.tail) <= 1_024
    assert completions.ending_of(answer).output_tokens == 2_000


DONE = b"data: [DONE]\n\n"


def stream(*events, end=DONE):
    tail = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + end
    return ReplayAnswer(0.0, status=200, first_at=1.0, tail=bytearray(tail))


WORD = {"choices": [{"text": " a", "finish_reason": None}]}
TOO_LONG = {"message": "the prompt is too long", "type": "BadRequestError", "code": 400}


@pytest.mark.parametrize(
    ("answer", "outcome", "error"),
    [
        (stream(WORD, {"error": {"message": "the engine died"}}), "error", "the engine died"),
        (stream({"error": TOO_LONG}), "client_error", "the prompt is too long"),
        (stream(WORD, {"choices": [{"text": "", "finish_reason": "abort"}]}), "error", "finish_reason abort"),
        (stream(WORD, end=b""), "error", "the stream ended without [DONE]"),
        (stream(WORD, {"choices": [], "error": None}), "ok", ""),
        (stream(WORD, {"choices": [], "usage": {"prompt_tokens": "many"}}), "ok", ""),
        (ReplayAnswer(0.0, status=200, tail=bytearray(DONE)), "error", "the stream ended without content"),
        (ReplayAnswer(0.0, status=204), "error", "204"),
    ],
)
def test_a_stream_is_judged_by_its_end(answer, outcome, error):
    found = completions.ending_of(answer)
    assert (found.outcome, error in found.error, found.output_tokens) == (outcome, True, None)


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [(504, "deadline_exceeded", "refused"), (502, "failed_alike", "client_error"), (503, "shutting_down", "error")],
)
def test_an_answer_made_by_the_router_has_the_outcome_of_its_receipt(status, code, outcome):
    body = bytearray(orjson.dumps({"error": {"message": "why", "code": code}}))
    assert completions.ending_of(ReplayAnswer(0.0, status=status, tail=body)).outcome == outcome


def test_the_first_content_is_the_first_token():
    beginning = bytearray(b': ping\n\ndata: {"choices":[{"text":""}]}\n\n')
    assert not _has_content(beginning)
    assert not _has_content(beginning + b'data: {"choices":[{"text":" a"')
    assert _has_content(beginning + b'data: {"choices":[{"text":" a"}]}\n\n')
