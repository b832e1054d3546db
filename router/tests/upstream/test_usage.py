"""Usage is read from the answers of every API, and its chunk is removed from streams that did not ask for it."""

import json

import pytest

from router.tests.engine import ANSWER, USAGE, events, reply, stream
from router.upstream.answer.usage import Strip, combined, parse
from router.upstream.answer.used import LARGEST, Usage

TIERS = {"device": 1, "host": 2, "storage": 4}
CHUNK = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(9, 4, 2)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(9, None, 2)),
        ({"prompt_tokens": 9, "total_tokens": 9}, Usage(9, None, None)),
        ({"total_tokens": 900}, Usage(900)),
        ({"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}, Usage(9, 4, 2)),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 7, "cached_tokens_details": TIERS}},
            Usage(9, 7, None, (1, 2, 4)),
        ),
        (
            {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 7, "cached_tokens_details": {"host": 7}}},
            Usage(9, 7, None, (0, 7, 0)),
        ),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens_details": [1]}}, Usage(9)),
        ({"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 2}, Usage(9, 4, 2)),
        ({"input_tokens": 5, "cache_creation_input_tokens": 3, "output_tokens": 2}, Usage(8, None, 2)),
        ({"type": "duration", "seconds": 61}, Usage(audio_s=61.0)),
        ({"type": "duration", "seconds": "61"}, Usage()),
        ({"prompt_tokens": -1, "completion_tokens": True}, Usage(None, None, None)),
        ({"prompt_tokens": 10**26, "completion_tokens": LARGEST + 1}, Usage(None, None, None)),
        ({"prompt_tokens": 10**26, "by": {"a": {"b": "c"}}, "completion_tokens": LARGEST}, Usage(None, None, LARGEST)),
        ({"prompt_tokens": float("nan"), "completion_tokens": float("inf")}, Usage(None, None, None)),
        ({"input_tokens": 10**400, "output_tokens": 1.5}, Usage(None, None, None)),
    ],
)
def test_each_apis_usage_is_understood(raw, usage):
    assert parse(raw) == usage


def test_anthropic_streams_report_usage_in_two_places():
    first, last = Usage(9, 4, 1), Usage(None, None, 50)
    assert combined(first, last) == Usage(9, 4, 50)


def test_a_stream_of_vllm_reports_its_cached_tokens_only_at_its_end():
    """vLLM 0.32 counts cached tokens as input in its first event: findings/spans-lose-cached.sh."""
    first = parse({"input_tokens": 1000, "output_tokens": 0})
    last = parse({"input_tokens": 40, "cache_read_input_tokens": 960, "output_tokens": 7})
    assert combined(first, last) == Usage(1000, 960, 7)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_the_chunk_is_recognised_however_the_stream_is_split(end):
    whole = b"".join(events()).replace(b"\n\n", end)
    expected = b"".join(events(usage=False)).replace(b"\n\n", end)
    for cut in range(len(whole)):
        strip = Strip()
        parts = [strip.feed(whole[:cut]), strip.feed(whole[cut:]), strip.finish()]
        assert b"".join(parts) == expected


def test_a_chunk_with_choices_and_usage_stays():
    event = b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}\n\n'
    assert Strip().feed(event) == event


def test_an_endless_event_is_not_buffered_forever():
    strip = Strip()
    sent = sum(len(strip.feed(b"x" * 10_000)) for _ in range(100))
    assert sent > 900_000


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_without_the_request_for_usage_is_asked_for_it_and_stripped(world, path):
    w = await world(None)
    response = await w.ask(path, stream=True)
    assert w.engines[0].received[0].document["stream_options"] == {"include_usage": True}
    assert response.content == b"".join(events(usage=False))
    receipt = await w.receipt(response)
    assert (receipt["actual_prompt_tokens"], receipt["cached_tokens"], receipt["output_tokens"]) == (100, 64, 3)


async def test_other_stream_options_are_kept(world):
    w = await world(None)
    options = {"include_usage": False, "continuous_usage_stats": True, "chunk_include_usage": False}
    response = await w.ask(stream=True, stream_options=options)
    sent = w.engines[0].received[0].document["stream_options"]
    assert sent == {"include_usage": True, "chunk_include_usage": False}, "the client has asked for no usage"
    assert CHUNK not in response.content


async def test_a_stream_with_the_request_for_usage_is_unchanged(world):
    w = await world(None)
    raw = json.dumps({"model": "llama", "prompt": "x", "stream": True, "stream_options": {"include_usage": True}})
    response = await w.client.post("/v1/completions", content=raw)
    assert w.engines[0].received[0].body == raw.encode()
    assert CHUNK in response.content
    assert (await w.receipt(response))["output_tokens"] == 3


async def test_an_engine_without_usage_gives_null_and_never_zero(world):
    w = await world(stream(events(usage=False)))
    receipt = await w.receipt(await w.ask(stream=True))
    assert receipt["outcome"] == "ok"
    assert [receipt[key] for key in ("actual_prompt_tokens", "cached_tokens", "output_tokens", "tpot_ms")] == [None] * 4
    assert receipt["ttft_ms"] > 0


async def test_an_engine_that_leaves_out_zero_cached_tokens_is_understood(world):
    """vLLM omits the field when nothing was cached; an engine that never sends it reports nothing."""
    without = ANSWER | {"usage": {"prompt_tokens": 100, "completion_tokens": 3}}
    w = await world(None)
    w.engines[0].script += [reply(without), reply(), reply(without)]
    receipts = [await w.receipt(await w.ask()) for _ in range(3)]
    assert [receipt["cached_tokens"] for receipt in receipts] == [None, 64, 0]
