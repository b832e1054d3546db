"""A receipt explains one request: the decision, its reasons and the outcome."""

import asyncio
import json

import pytest
import redis
from msgspec.structs import fields

from router.contract.redis import redis_keys
from router.contract.redis.codec import RedisValue, read
from router.contract.redis.receipt import Receipt
from router.policy.replay import reasons
from router.request.call import Call
from router.sync import reporter
from router.telemetry import receipts
from router.tests.engine import break_off, events, hang, hang_up, reply, write_head
from router.tests.values import loaded


class OlderReceipt(RedisValue, tag=2, frozen=True, kw_only=True):
    request_id: str
    reasons: tuple[str, ...] = ()


def raw_reply(answer):
    async def behave(engine, request, writer):
        write_head(writer, 200, "content-type: application/json", f"content-length: {len(answer)}")
        writer.write(answer)
        await writer.drain()

    return behave


async def test_a_served_request_leaves_a_complete_receipt(world):
    w = await world(None, None, strategy="adaptive_v1")
    response = await w.ask(
        "/v1/chat/completions", stream=True, user="alice", messages=[{"role": "user", "content": "x"}]
    )
    receipt = await w.receipt(response)
    assert receipt["schema"] == 2
    assert (receipt["router"], receipt["pool"], receipt["model"]) == ("router-1", "demo", "llama")
    assert (receipt["endpoint"], receipt["stream"], receipt["status"]) == ("/v1/chat/completions", True, 200)
    assert (receipt["policy"], receipt["version"], receipt["strategy"]) == ("default", 1, "adaptive_v1")
    assert (receipt["class"], receipt["flow"], receipt["outcome"]) == ("warm", "colocated", "ok")
    assert receipt["instance"] == response.headers["x-weir-instance"]
    assert receipt["reasons"]
    assert receipt["candidates"]["id"] == ["demo-0", "demo-1"]
    assert receipt["predicted_cached"] + receipt["new_tokens"] == receipt["prompt_tokens"]
    assert 0 < receipt["first_byte_ms"] <= receipt["ttft_ms"] <= receipt["e2e_ms"]
    assert receipt["tpot_ms"] >= 0
    assert receipt["session"]
    assert "alice" not in json.dumps(receipt)


async def test_reasons_for_the_least_price_are_numbers_that_the_reader_puts_into_words(world):
    w = await world(None, None, strategy="priced")
    written = await w.receipt(await w.ask())
    assert "reasons" not in written
    words = reasons(read(Receipt, json.dumps(written)))
    assert words[0].startswith("least price: ")
    assert words[1].startswith(f"its own wait on {written['instance']}: 0 queued, ")
    assert words[3].startswith("decoding beside 0 requests and ")
    assert words[4].endswith(": 2 of 2 compute no prompt")


def test_receipts_of_older_routers_keep_their_reasons_and_older_readers_can_read_new_receipts():
    plain = {"schema": 2, "request_id": "r", "at": 1.0}
    price = [None, "a", 10, 5.4, 5, 3.2, 9.0, 8.0, 2, 0.5, 3, 700.0, 1.2, 0.25, "of a newer router"]
    older, newer = (json.dumps({**plain, **more}) for more in ({"reasons": ["said"]}, {"price": price}))
    assert reasons(read(Receipt, older)) == ("said",)
    assert reasons(read(Receipt, newer)) == (
        "least price: inf tokens of prefill",
        "its own wait on a: 10 queued, 5 for 5 new, 3 for the transfer: late after 9, which counts as 8",
        "a prefill stalls 2 requests: 0.50 · 11",
        "decoding beside 3 requests and 700 tokens of context: 1",
        "a stall weighs 0.50: 25 % of the pool compute no prompt",
    )
    assert read(OlderReceipt, newer).reasons == ()


@pytest.mark.parametrize(
    "price",
    [
        *([], ["x"] * 14, [None] * 14, [10**400] * 14),
        *([None, "a", 1, 1, 1, None, None, None, 1, 1, 1, 1, 1, idle] for idle in ([], {})),
        [None, "a", 1, 10**18, 1, None, None, None, "x", 1, 1, 1, 1, 1],
    ],
)
def test_a_malformed_price_yields_no_reasons(price):
    assert reasons(read(Receipt, json.dumps({"schema": 2, "request_id": "r", "at": 1.0, "price": price}))) == ()


async def test_a_receipt_has_the_fields_of_the_contract(world):
    w = await world(None)
    receipt = await w.receipt(await w.ask())
    assert read(Receipt, json.dumps(receipt)).request_id == receipt["request_id"]
    assert receipt.keys() - {"schema"} <= {field.encode_name for field in fields(Receipt)}


async def test_the_streams_copy_has_no_candidates(world):
    w = await world(None)
    await w.receipt(await w.ask(headers={"x-request-id": "r1"}))
    listed = w.published.client.xrange(redis_keys.RECEIPTS)
    receipt = json.loads(listed[0][1][b"r"])
    assert receipt["request_id"] == "r1"
    assert not {"inputs", "candidates"} & set(receipt)


async def test_receipts_whose_write_got_no_answer_are_written_once(world, monkeypatch):
    w = await world(None)
    client, lost = w.router.source.link.client, []
    write = client.eval

    async def without_answer(script, *words):
        answer = await write(script, *words)
        if script is reporter._KEEP_RECEIPTS and len(lost) < 3:
            lost.append(answer)
            raise redis.TimeoutError("no answer")
        return answer

    monkeypatch.setattr(client, "eval", without_answer)
    wanted = [(await w.ask()).headers["x-request-id"]]
    await w.until(lambda: len(lost) == 1)
    wanted += [(await w.ask()).headers["x-request-id"] for _ in range(2)]  # written at the next attempt
    await w.until(lambda: not w.router.recorder.pending and w.router.recorder.traffic["written"] == 3)
    written = w.published.client.xrange(redis_keys.RECEIPTS)
    assert [json.loads(entry[b"r"])["request_id"] for _, entry in written] == wanted
    assert w.published.client.xlen(redis_keys.TRAFFIC) == 3


async def test_a_corrupt_marker_blocks_no_receipt(world):
    w = await world(None)
    await w.receipt(await w.ask())
    w.published.client.set(redis_keys.receipted_key("router-1", w.router.source.reporter.life), "spoilt")
    assert await w.receipt(await w.ask())


async def test_apart_from_inputs_and_candidates_the_copy_equals_the_receipt(world):
    w = await world(None)
    whole = await w.receipt(await w.ask())
    (copy,) = w.published.client.xrange(redis_keys.RECEIPTS)
    del whole["inputs"], whole["candidates"]
    assert json.loads(copy[1][b"r"]) == whole


async def test_the_copy_of_a_receipt_without_a_decision_is_complete(world):
    w = await world(None)
    whole = await w.receipt(await w.ask(model="nope"))
    (copy,) = w.published.client.xrange(redis_keys.RECEIPTS)
    assert json.loads(copy[1][b"r"]) == whole


def test_times_are_recorded_to_the_microsecond():
    call = Call("r1", "/v1/completions", at=0.0, started=10.0)
    call.outcome.queued_s, call.outcome.first_byte, call.outcome.e2e_ms = 0.0012345678, 10.25, 1.0006
    made = receipts.receipt(call, "router-1")
    assert (made["queue_ms"], made["first_byte_ms"], made["ttft_ms"], made["e2e_ms"]) == (1.235, 250.0, None, 1.001)


async def test_an_answer_that_is_not_streamed_has_no_time_to_first_token(world):
    w = await world(None)
    receipt = await w.receipt(await w.ask())
    assert (receipt["ttft_ms"], receipt["tpot_ms"], receipt["output_tokens"]) == (None, None, 3)


async def test_retries_are_recorded_with_the_failed_instance(world):
    w = await world(hang_up, None)
    receipt = await w.receipt(await w.ask())
    assert receipt["retries"] == 1
    first, second = receipt["attempts"]
    assert (first["instance"], first["status"]) == ("demo-0", None)
    assert "closed the connection" in first["error"]
    assert second == {"instance": "demo-1", "status": 200, "result": "served", "error": ""}
    assert receipt["candidates"]["id"] == ["demo-0", "demo-1"]
    assert "closed the connection" in receipt["candidates"]["refused"]["0"]


async def test_each_outcome_has_its_name(world):
    w = await world(None)
    w.engines[0].script += [reply({}, 400), reply({}, 429), break_off(events()[:1])]
    receipts = [await w.receipt(await w.ask(stream=True)) for _ in range(3)]
    assert [receipt["outcome"] for receipt in receipts] == ["client_error", "refused", "error"]
    assert [receipt["fault"] for receipt in receipts] == ["client", "nobody", "engine"]
    assert [receipt["result"] for receipt in receipts][2] == "failed_after_content"
    assert receipts[2]["code"] == "upstream_failed"
    unknown = await w.receipt(await w.ask(model="nope"))
    assert (unknown["outcome"], unknown["code"], unknown["class"]) == ("client_error", "model_not_found", None)


async def test_cached_tokens_are_recorded_beside_the_predicted_ones(world):
    w = await world(None)
    first = await w.receipt(await w.ask(prompt="x" * 4096))
    second = await w.receipt(await w.ask(prompt="x" * 4096))
    assert first["predicted_cached"] == 0
    assert second["predicted_cached"] > 0
    assert second["cached_tokens"] == 64


async def test_receipts_expire(world):
    w = await world(None)
    await w.receipt(await w.ask(headers={"x-request-id": "r1"}))
    assert 0 < w.published.client.ttl(redis_keys.receipt_key("r1")) <= redis_keys.RECEIPT_TTL_S


@pytest.mark.parametrize(("size", "kept_s"), [(1_250, 360), (7_000, 64), (100, 3_600), (1_000_000, 60)])
async def test_receipts_are_kept_for_as_long_as_their_bytes_allow(world, size, kept_s):
    w = await world(None)
    made = w.router.source.reporter
    told = [made._ttl_s(100 * size, made._flushed_at + 1.0) for _ in range(600)]  # 100 requests in each second
    assert told[-1] == pytest.approx(kept_s, rel=0.01)


async def test_the_window_of_a_class_counts_ended_requests(world):
    w = await world(None)
    for _ in range(3):
        await w.ask(stream=True, user="s")
    w.engines[0].script.append(reply({}, 400))
    await w.ask()
    await w.router.source.reporter.report()
    own = loaded(w.published.client.get(redis_keys.router_key("router-1")))
    window = own["classes"]["demo"]["warm"]
    assert [window[key] for key in ("n", "started_10s", "ok", "client_error", "retries")] == [4, 4, 3, 1, 0]
    assert sum(window["ttft"].values()) == sum(window["e2e"].values()) == 3
    assert sum(window["new_tokens"].values()) == window["hit_share"]["n"] == 4
    assert sum(window["reuse_gap"].values()) == 2
    assert sum(window["queued"].values()) == sum(n for by in window["chosen"].values() for n in by.values()) == 4
    assert {name for by in window["chosen"].values() for name in by} == {"demo-0"}


async def test_load_in_flight_is_published_to_the_other_routers(world):
    w = await world(hang)
    asking = asyncio.ensure_future(w.ask(prompt="x" * 400))
    await w.until(lambda: w.engines[0].received)
    await w.router.source.reporter.report()
    own = loaded(w.published.client.get(redis_keys.router_key("router-1")))
    assert own["inflight"] == {"demo-0": [1, 100, 0]}
    w.engines[0].release.set()
    await asking


POISON = [
    b'{"choices":[{"text":"w"}],"usage":{' + usage + b"}}"
    for usage in (
        b'"prompt_tokens":1e26,"completion_tokens":3',
        b'"prompt_tokens":%d,"completion_tokens":3,"why":{"nested":{"deep":""}}' % 10**26,
        b'"prompt_tokens":NaN,"completion_tokens":Infinity,"why":""',
        b'"prompt_tokens":-5,"completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":9}',
        b'"prompt_tokens":1,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":1000000000}',
    )
]


@pytest.mark.parametrize("answer", POISON)
async def test_impossible_numbers_from_an_engine_stop_neither_receipts_nor_metrics(world, answer):
    w = await world(None)
    w.engines[0].script.append(raw_reply(answer))
    poisoned, next_ = await w.ask(), await w.ask()
    assert poisoned.content == answer
    assert (await w.receipt(poisoned))["actual_prompt_tokens"] in (None, 1)
    assert (await w.receipt(next_))["actual_prompt_tokens"] == 100
    assert (await w.client.get("/metrics")).status_code == 200


async def test_a_receipt_that_cannot_be_written_is_dropped_and_counted_and_the_others_are_written(world, caplog):
    w = await world(None)
    recorder = w.router.recorder
    first = await w.ask()
    await w.receipt(first)
    recorder.pending.append(Call("odd", "/v1/completions\ud800", at=1.0, started=0.0))
    assert await w.receipt(await w.ask())
    assert recorder.unwritable == 1
    assert "receipt odd cannot be written" in caplog.text
    assert "weir_router_receipts_unwritable_total 1.0" in (await w.client.get("/metrics")).text
