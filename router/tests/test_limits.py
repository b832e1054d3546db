"""Limits of API keys: shared by all routers, never exceeded, settled by actual use."""

import asyncio
import json
import time
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract.redis import redis_keys
from router.contract.redis.api_keys import PublishedKey
from router.http.errors import ErrorResponse
from router.limits.api_key_auth import ApiKeyAuth, _used
from router.limits.charge import DEFAULT_OUTPUT, LARGEST_OUTPUT, streamed
from router.limits.token_buckets import Allowance, Bucket, TokenRequest, duration
from router.sync.redis_link import RedisLink
from router.sync.token_bucket_store import TokenBucketStore
from router.tests.conftest import key_entry, running
from router.tests.engine import ANSWER, USAGE, break_off, events, reply, stream, write_chunk, write_head
from router.tests.http.test_own_errors import code_of
from router.tests.liar import plans
from router.tests.test_keys import ALICE, bearer, keyed

USED = USAGE["prompt_tokens"] + USAGE["completion_tokens"]


async def test_requests_beyond_the_limit_are_refused_with_a_retry_after(world):
    w = await keyed(world, key_entry(ALICE, requests_per_min=3))
    answers = [await w.ask(headers=bearer(ALICE)) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert code_of(answers[3]) == "rate_limit_exceeded"
    assert 1 <= int(answers[3].headers["retry-after"]) <= 20
    assert len(w.engines[0].received) == 3


async def test_answers_carry_the_remaining_limit_in_openais_headers(world):
    w = await keyed(world, key_entry(ALICE, requests_per_min=10, tokens_per_min=100_000))
    headers = (await w.ask(headers=bearer(ALICE), max_tokens=100)).headers
    assert headers["x-ratelimit-limit-requests"] == "10"
    assert headers["x-ratelimit-remaining-requests"] in ("9", "10")  # the bucket refills while a busy machine is slow
    assert headers["x-ratelimit-reset-requests"].endswith("s")
    assert headers["x-ratelimit-limit-tokens"] == "100000"
    assert 99_000 < int(headers["x-ratelimit-remaining-tokens"]) <= 100_000


async def test_a_key_without_limits_has_no_such_headers(world):
    w = await keyed(world, key_entry(ALICE))
    assert not [name for name in (await w.ask(headers=bearer(ALICE))).headers if "ratelimit" in name]


async def test_tokens_are_charged_as_estimated_and_settled_as_used(world):
    w = await keyed(world, key_entry(ALICE, tokens_per_min=60_000))
    ended = calls(w)
    for number in range(20):  # estimate: 20 x 30,000
        assert (await w.ask(headers=bearer(ALICE), max_tokens=30_000)).status_code == 200
        while len(ended) <= number:  # the client may get its answer before
            await asyncio.sleep(0.001)
    allowance = w.router.pools.auth.meters["alice"].allowances["tokens"]
    spent = 60_000 - allowance.remaining(asyncio.get_running_loop().time())
    assert spent <= 20 * USED + 100


def calls(w):
    """Record the calls that have ended."""
    found, record = [], w.router.recorder.ended
    w.router.recorder.ended = lambda call: (found.append(call), record(call))
    return found


@pytest.mark.parametrize(
    ("path", "body", "charged"),
    [
        ("/v1/completions", {"max_tokens": 700}, 700),
        ("/v1/completions", {"metadata": {"max_tokens": 1}}, DEFAULT_OUTPUT),
        ("/v1/completions", {"metadata": {"max_tokens": 1}, "max_tokens": 700}, 700),
        ("/v1/completions", {"prompt": '"max_tokens": 1'}, DEFAULT_OUTPUT),
        ("/v1/completions", {"max_tokens": None}, DEFAULT_OUTPUT),
        ("/v1/completions", {"max_tokens": 700.0}, 700),
        ("/v1/completions", {"max_tokens": "1"}, 1),
        ("/v1/completions", {"max_tokens": True}, 1),
        ("/v1/completions", {"max_tokens": -5}, DEFAULT_OUTPUT),
        ("/v1/completions", {"max_tokens": 10**15}, LARGEST_OUTPUT),
        ("/v1/completions", {"max_completion_tokens": 1}, DEFAULT_OUTPUT),
        ("/v1/chat/completions", {"messages": [], "max_tokens": 3, "max_completion_tokens": 700}, 700),
        ("/v1/responses", {"input": "x", "max_output_tokens": 700, "max_tokens": 1}, 700),
        ("/v1/messages", {"messages": [], "max_tokens": 700}, 700),
        ("/v1/embeddings", {"input": "x", "max_tokens": 700}, 0),
        ("/v1/completions", {"n": 3, "max_tokens": 100}, 300),
        ("/v1/completions", {"n": 2, "best_of": 4, "max_tokens": 100}, 400),
        ("/v1/completions", {"n": 2, "prompt": ["a", "b"], "max_tokens": 100}, 400),
        ("/v1/completions", {"prompt": [[1, 2], [3], [4]], "max_tokens": 100}, 300),
        ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 100}, 100),
        ("/v1/completions", {"n": 10**12}, LARGEST_OUTPUT),
        ("/v1/completions", {"n": "8"}, 8 * DEFAULT_OUTPUT),
        ("/v1/completions", {"n": " " + "0" * 99 + "8 "}, 8 * DEFAULT_OUTPUT),
        ("/v1/completions", {"n": "0_8"}, 8 * DEFAULT_OUTPUT),
        ("/v1/completions", {"n": "eight"}, LARGEST_OUTPUT),
        ("/v1/completions", {"max_tokens": "0_4096"}, 4096),
        ("/v1/completions", {"max_tokens": "4096." + "0" * 50}, 4096),
        ("/v1/completions", {"prompt": None, "prompt_embeds": ["a", "b"], "max_tokens": 100}, 200),
        ("/v1/completions", {"prompt_embeds": ["a", "b"], "max_tokens": 100}, 300),
        ("/v1/completions", {"prompt_embeds": "a", "max_tokens": 100}, 200),
    ],
)
async def test_the_charge_follows_the_limit_that_the_engine_applies(world, path, body, charged):
    w = await keyed(world, key_entry(ALICE, tokens_per_min=2_000))
    ended = calls(w)
    assert (await w.ask(path, headers=bearer(ALICE), **body)).status_code == 200
    assert ended[0].charged == ended[0].prediction.prompt_tokens + charged


def choice(index, **more):
    return {"index": index, "text": "word", **more}


def event(*choices, end=b"\n\n"):
    return b"data: " + json.dumps({"choices": choices}).encode() + end


@pytest.mark.parametrize(
    ("data", "answers", "tokens"),
    [
        (event(choice(0)), 1, 1),
        (b"".join(event(choice(index)) for index in range(8)), 8, 8),
        (event(*(choice(index) for index in range(8))), 8, 8),
        (event(choice(0), end=b"\r\n\r\n") * 3, 1, 3),
        (b"event: delta\n" + event(choice(0)), 1, 1),
        (event({"index": 0, "text": '"index": "index": data: \n\ndata: '}), 2, 1),
        (b": a comment\n\n", 1, 0),
    ],
)
def test_a_streams_tokens_are_counted_by_event_and_answer(data, answers, tokens):
    assert streamed(data, several=answers > 1) == tokens


@pytest.mark.parametrize("together", [True, False], ids=["one event for all answers", "one event for each"])
async def test_a_stream_of_eight_answers_that_its_client_leaves_is_charged_for_each(world, together):
    async def ten_rounds(engine, request, writer):
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        eight = [choice(index) for index in range(8)]
        for _ in range(10):
            write_chunk(writer, event(*eight) if together else b"".join(map(event, eight)))
            await writer.drain()
        await engine.release.wait()

    w = await keyed(world, key_entry(ALICE, tokens_per_min=1_000_000), engine=ten_rounds)
    ended = calls(w)
    body = {"model": "llama", "prompt": "x" * 400, "stream": True, "max_tokens": 5_000, "n": 8}
    async with w.client.stream("POST", "/v1/completions", json=body, headers=bearer(ALICE)) as answer:
        seen = b""
        async for part in answer.aiter_raw():
            seen += part
            if seen.count(b'"index"') == 80:
                break
    await w.until(lambda: ended)
    assert _used(ended[0]) == ended[0].prediction.prompt_tokens + 80


@pytest.mark.parametrize(
    ("interval", "sent", "tokens"),
    [(None, None, 10), (8, 8, 80), ("1000", 32, 320), (10**6, 32, 320), (0, 1, 10), ("0_1000", 32, 320)],
)
async def test_an_abandoned_stream_is_charged_for_the_part_that_was_sent(world, interval, sent, tokens):
    """The charge counts events, each of which has as many tokens as vLLM is asked to put into one."""

    async def ten_events(engine, request, writer):
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        for _ in range(10):
            write_chunk(writer, events()[0])
            await writer.drain()
            await asyncio.sleep(0.01)
        await engine.release.wait()

    w = await keyed(world, key_entry(ALICE, tokens_per_min=100_000), engine=ten_events)
    ended = calls(w)
    body = {"model": "llama", "prompt": "x" * 400, "stream": True, "max_tokens": 5_000}
    body |= {} if interval is None else {"stream_interval": interval}
    async with w.client.stream("POST", "/v1/completions", json=body, headers=bearer(ALICE)) as answer:
        seen = b""
        async for part in answer.aiter_raw():
            seen += part
            if seen.count(b"data:") == 10:
                break
    await w.until(lambda: ended)
    (call,) = ended
    assert w.engines[0].received[-1].document.get("stream_interval") == sent
    assert (call.outcome.label, call.outcome.output_tokens) == ("cancelled", tokens)
    assert _used(call) == call.prediction.prompt_tokens + tokens
    allowance = w.router.pools.auth.meters["alice"].allowances["tokens"]
    spent = 100_000 - allowance.remaining(asyncio.get_running_loop().time())
    assert spent <= call.prediction.prompt_tokens + tokens


@pytest.mark.parametrize("path", plans.STREAMED)
@pytest.mark.parametrize("counts", [False, True])
async def test_an_abandoned_stream_costs_its_events_whatever_usage_it_reported(world, path, counts):
    kinds = ["begin", *["text"] * 10, *["usage"] * counts]  # the first message also has a usage

    async def never_ends(engine, request, writer):
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        for kind in kinds:
            write_chunk(writer, plans.event(path, kind, (9, 0)) + b"\n\n")
        await writer.drain()
        await engine.release.wait()

    w = await keyed(world, key_entry(ALICE, tokens_per_min=100_000), engine=never_ends)
    ended = calls(w)
    body = {"model": "llama", "prompt": "x", "messages": [], "input": "x", "stream": True, "max_tokens": 5_000}
    async with w.client.stream("POST", path, json=body, headers=bearer(ALICE)) as answer:
        seen = b""
        async for part in answer.aiter_raw():
            seen += part
            if seen.count("wört".encode()) == 10:
                break
    await w.until(lambda: ended)
    prompt = 9 if ended[0].outcome.usage is not None else ended[0].prediction.prompt_tokens
    assert ended[0].outcome.label == "cancelled"
    assert prompt + 10 <= w.router.pools.auth.meters["alice"].tokens == _used(ended[0]) <= prompt + len(kinds)


async def test_an_abandoned_stream_is_charged_per_event_as_complete_streams_were(world):
    """The stream comes from an engine with speculative decoding."""
    usage = {"prompt_tokens": 9, "completion_tokens": 60}
    parts = [events()[0]] * 20
    whole = stream([*parts, b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n", events()[-1]])
    w = await keyed(world, key_entry(ALICE, tokens_per_min=1_000_000), engine=whole)
    ended = calls(w)
    pool = w.router.pools.get("demo")
    for _ in range(3):
        await w.ask(stream=True, headers=bearer(ALICE))
    learned = pool.tokens.per_event
    assert learned > 1
    for field in ("include_reasoning", "stream_interval"):  # fields that make streams send fewer events
        await w.ask(stream=True, headers=bearer(ALICE), **{field: 0})
    assert pool.tokens.per_event == learned
    pool.tokens.per_event = 3.0
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    w.engines[0].behaviour = break_off([role, *parts])
    for most, tokens in ((500, 60), (40, 40)):
        await w.ask(stream=True, headers=bearer(ALICE), max_tokens=most)
        assert (ended[-1].outcome.label, ended[-1].outcome.output_tokens) == ("error", tokens)
        assert _used(ended[-1]) == ended[-1].prediction.prompt_tokens + tokens


async def test_tokens_beyond_the_limit_are_refused(world):
    usage = {"prompt_tokens": 900, "completion_tokens": 300}
    w = await keyed(world, key_entry(ALICE, tokens_per_min=1_000), engine=reply(ANSWER | {"usage": usage}))
    assert (await w.ask(headers=bearer(ALICE), max_tokens=10)).status_code == 200  # it used more than estimated
    refused = await w.ask(headers=bearer(ALICE), max_tokens=10)
    assert (refused.status_code, code_of(refused)) == (429, "rate_limit_exceeded")


async def test_a_debt_larger_than_a_bucket_is_repaid_before_anything_else_passes(bucket_store):
    auth = ApiKeyAuth()
    auth.bucket_store = bucket_store
    meter = auth._meter(PublishedKey(id="debtor", name="ci", sha256="", tokens_per_min=600))
    meter.allowances["tokens"].held = -1500.0  # an answer was far longer than estimated
    for _ in range(2):
        with pytest.raises(ErrorResponse) as refused:
            await auth._cover(meter, {"requests": 1.0, "tokens": 60.0})
        assert refused.value.status == 429
    assert meter.allowances["tokens"].held <= -900.0 + 60.0


async def test_a_prompt_larger_than_a_minutes_limit_is_refused_with_that_reason(world):
    w = await keyed(world, key_entry(ALICE, tokens_per_min=100))
    refused = await w.ask(headers=bearer(ALICE), prompt="x" * 10_000)
    assert (refused.status_code, code_of(refused)) == (429, "request_too_large_for_key")
    assert refused.headers["retry-after"] == "60"


async def test_a_request_that_reached_no_engine_costs_nothing(world):
    w = await keyed(world, key_entry(ALICE, requests_per_min=2, tokens_per_min=10_000))
    w.published.fleet()
    await w.until(lambda: w.router.pools.get("demo").ready == 0)
    answers = [await w.ask(headers=bearer(ALICE)) for _ in range(5)]
    assert {answer.status_code for answer in answers} == {503}


@pytest.mark.slow
async def test_two_routers_share_a_limit_exactly(world, redis_url):
    w = await keyed(world, key_entry(ALICE, requests_per_min=40))
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        other, client = await stack.enter_async_context(running(redis_url, "router-2"))
        await w.until(lambda: other.pools.auth.ring is not None and other.pools.get("demo").ready)
        body = {"model": "llama", "prompt": "hello"}
        asked = [
            each.post("/v1/completions", json=body, headers=bearer(ALICE))
            for _ in range(40)
            for each in (w.client, client)
        ]
        statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
    flowed_in = (time.monotonic() - began) * 40 / 60
    assert 38 <= statuses.count(200) <= 41 + flowed_in  # minus what both still hold, plus what has flowed in meanwhile
    assert statuses.count(200) + statuses.count(429) == 80


async def test_most_requests_of_a_busy_key_need_no_call_to_redis(world):
    w = await keyed(world, key_entry(ALICE, requests_per_min=600_000))
    await w.ask(headers=bearer(ALICE))
    bucket_store, asked = w.router.pools.auth.bucket_store, []
    borrow = bucket_store.borrow

    async def counted(*arguments):
        asked.append(arguments)
        return await borrow(*arguments)

    bucket_store.borrow = counted
    for _ in range(30):
        assert (await w.ask(headers=bearer(ALICE))).status_code == 200
    assert len([token_requests for _, token_requests in asked if token_requests[0].needed > 0]) <= 10


async def test_changed_limits_take_effect_at_once(world):
    w = await keyed(world, key_entry(ALICE, requests_per_min=2))
    assert [(await w.ask(headers=bearer(ALICE))).status_code for _ in range(3)] == [200, 200, 429]
    w.published.keys(key_entry(ALICE), required=("*",))
    await w.until(lambda: not w.router.pools.auth.meters["alice"].allowances)
    assert (await w.ask(headers=bearer(ALICE))).status_code == 200


async def test_without_redis_a_router_applies_its_share_of_the_limit(world):
    w = await keyed(world, key_entry(ALICE, requests_per_min=4))
    auth = w.router.pools.auth
    auth.bucket_store.routers = 2

    async def away(*arguments):
        return None

    auth.bucket_store.borrow = away
    assert [(await w.ask(headers=bearer(ALICE))).status_code for _ in range(4)] == [200, 200, 429, 429]


@pytest.fixture
async def bucket_store(live_redis, redis_url):
    link = RedisLink(redis_url)
    link.answered()
    yield TokenBucketStore(link, ())
    await link.close()


async def test_returned_tokens_can_be_granted_again(bucket_store):
    taken = await bucket_store.borrow("k", [TokenRequest("requests", 10, 10, 10)])
    assert taken.granted == (10.0,)
    refused = await bucket_store.borrow("k", [TokenRequest("requests", 10, 5, 5)])
    assert refused.granted == (0.0,)
    assert 0 < refused.wait_s <= 30
    await bucket_store.borrow("k", [TokenRequest("requests", 10, 0, -5)])
    assert (await bucket_store.borrow("k", [TokenRequest("requests", 10, 5, 5)])).granted == (5.0,)


async def test_all_kinds_are_lent_or_none(bucket_store):
    await bucket_store.borrow("k", [TokenRequest("tokens", 1_000, 900, 900)])
    grant = await bucket_store.borrow(
        "k", [TokenRequest("requests", 10, 1, 2), TokenRequest("tokens", 1_000, 500, 500)]
    )
    assert grant.granted == (0.0, 0.0)
    assert grant.left[0] == 10.0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda client, key: client.set(key, "garbage"),
        lambda client, key: client.hset(key, mapping={"at": "x", "a": "x"}),
    ],
)
async def test_an_unreadable_bucket_counts_as_a_full_one(bucket_store, live_redis, spoil):
    spoil(live_redis, redis_keys.limit_key("k"))
    grant = await bucket_store.borrow("k", [TokenRequest("a", 60, 1.0, 1.0)])
    assert grant is not None
    assert (grant.wait_s, grant.granted, round(grant.left[0])) == (0.0, (1.0,), 59)


async def test_a_redis_that_returned_empty_continues_to_grant(bucket_store, live_redis):
    await bucket_store.borrow("k", [TokenRequest("requests", 10, 1, 1)])
    live_redis.script_flush()
    live_redis.delete(redis_keys.limit_key("k"))
    assert (await bucket_store.borrow("k", [TokenRequest("requests", 10, 10, 10)])).granted == (10.0,)


@given(st.integers(1, 100_000), st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 1e5)), max_size=60))
def test_a_routers_own_bucket_never_grants_more_than_a_full_bucket_and_its_refill(limit, takes):
    bucket, now, given_out = Bucket(float(limit), 0.0), 0.0, 0.0
    for passed, needed in takes:
        now += passed
        if bucket.take(needed, limit, now) == 0:
            given_out += min(needed, limit)
    assert given_out <= limit + now * limit / 60 + 1e-3 * limit


@given(st.integers(1, 10**6), st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_a_token_request_never_exceeds_what_a_full_bucket_can_grant(limit, held, amount):
    assert 0 <= Allowance(limit, held).lack(amount) <= limit


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.012, b"12ms"), (1.0, b"1s"), (1.46, b"1.5s"), (90.0, b"1m30s"), (59.99, b"1m0s")]
)
def test_a_duration_is_written_as_openai_writes_it(seconds, text):
    assert duration(seconds) == text
