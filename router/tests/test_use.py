"""Each key's use is counted exactly once, whatever happens to Redis or its answers."""

import json
import time
from types import SimpleNamespace

import pytest
from redis.exceptions import ConnectionError as RedisGone

from router.contract.redis import redis_keys
from router.contract.redis.api_keys import PublishedKey
from router.contract.redis.codec import decode, encode
from router.contract.redis.use import EXPERIMENTS, HOUR_S, KEPT_HOURS, OTHER, UseCounts, UseHour
from router.pool.pool import Pool
from router.request.call import Call
from router.sync import use_reports
from router.telemetry import use
from router.telemetry.use import UseCounter
from router.tests.conftest import key_entry
from router.tests.engine import ANSWER, reply
from router.tests.test_keys import ALICE, bearer, keyed
from router.upstream.answer.used import Usage

RESULTS = {
    **{"ok": "served", "client_error": "client_error", "error": "failed_before_content"},
    **{"refused": "refused", "cancelled": "cancelled"},
}
NOON = 500_000 * HOUR_S


def ended(at=NOON, key="1", pool="demo", model="llama", label="ok", **outcome):
    call = Call("r", "/v1/completions", at, 0.0, pool=Pool(pool))
    call.pool.model = model
    call.key = PublishedKey(id=key, name=f"key {key}", sha256="") if key else None
    call.outcome.close(RESULTS[label])
    for name, value in outcome.items():
        setattr(call.outcome, name, value)
    return call


def rows(values):
    return {(row.key, row.pool, row.model): row.counts for value in values for row in value.rows}


def written(client, w):
    name = f"{w.router.source.id}.{w.router.source.reporter.life}"
    return [decode(UseHour, raw) for raw in client.hgetall(redis_keys.use_key(name)).values()], name


async def test_a_router_writes_the_use_of_each_key_and_forgets_confirmed_hours(world, monkeypatch):
    usage = {"prompt_tokens": 90, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 64}}
    w = await keyed(world, key_entry(ALICE), required=(), engine=reply(ANSWER | {"usage": usage}))
    reports, client = w.router.source.reporter.use, w.published.client
    for headers in (bearer(ALICE), bearer(ALICE), {}, bearer("sk-weir-wrong")):
        await w.ask(headers=headers)
    w.router.recorder.use.again()  # the router may still be writing the first report
    await reports.write()
    values, name = written(client, w)
    assert client.zscore(redis_keys.USE, name)
    found = rows(values)
    alice = found["alice", "demo", "llama"]
    assert (alice.requests, alice.input_tokens, alice.cached_tokens, alice.output_tokens) == (2, 180, 128, 60)
    assert found["", "demo", "llama"].requests == 1
    assert found["", "", ""] == UseCounts(requests=1, client_errors=1)
    client.delete(redis_keys.use_key(name))  # Redis returns empty
    await reports.write()  # the router notices
    await reports.write()
    again, _ = written(client, w)
    assert rows(again) == found
    client.hset(redis_keys.use_kept_key(name), mapping={str(each.hour): each.written for each in again})
    await reports.write()
    assert written(client, w)[0] != []  # the hour has not ended
    monkeypatch.setattr("router.sync.use_reports.time", SimpleNamespace(time=lambda: (again[0].hour + 2) * HOUR_S))
    await reports.write()
    assert written(client, w)[0] == []
    assert w.router.recorder.use.hours == []


async def test_a_failed_write_is_repeated_later(world, monkeypatch):
    w = await keyed(world, key_entry(ALICE))
    reports = w.router.source.reporter.use
    await w.ask(headers=bearer(ALICE))

    async def gone(*_):
        raise RedisGone

    with monkeypatch.context() as patch:
        patch.setattr(reports, "_write", gone)
        with pytest.raises(RedisGone):
            await reports.write()
    await reports.write()
    values, _ = written(w.published.client, w)
    assert rows(values)["alice", "demo", "llama"].requests == 1


async def test_many_rows_are_written_less_often_and_at_the_end(world, monkeypatch):
    monkeypatch.setattr(use_reports, "MANY_ROWS", 0)
    w = await keyed(world, key_entry(ALICE))
    reports = w.router.source.reporter.use
    await w.ask(headers=bearer(ALICE))
    reports._wrote_at = time.time()
    await reports.write()
    assert written(w.published.client, w)[0] == []
    await reports.write(last=True)
    assert len(written(w.published.client, w)[0]) == 1


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ({"usage": Usage(10, 4, 3)}, {"input_tokens": 10, "cached_tokens": 4, "output_tokens": 3}),
        ({"usage": Usage(10, 40, None)}, {"input_tokens": 10, "cached_tokens": 10}),  # a broken engine
        (  # the messages API reports the prompt first
            {"label": "cancelled", "usage": Usage(10), "streamed": True, "begun": True, "streamed_tokens": 7},
            {"cancelled": 1, "input_tokens": 10, "output_tokens": 7, "estimated": 1},
        ),
        (  # each event reports usage
            {"label": "cancelled", "usage": Usage(10, 0, 7), "streamed": True, "begun": True, "streamed_tokens": 7},
            {"cancelled": 1, "input_tokens": 10, "output_tokens": 7},
        ),
        ({"label": "refused", "status": 429, "begun": True}, {"refused": 1}),
        ({"label": "client_error", "status": 400, "begun": True}, {"client_errors": 1}),
        ({"label": "client_error", "status": 200, "begun": True}, {"client_errors": 1}),  # pings preceded the error
        (
            {"label": "client_error", "status": 200, "begun": True, "first_content": 0.1, "streamed_tokens": 7},
            {"client_errors": 1, "input_tokens": 20, "output_tokens": 7, "estimated": 1},
        ),
        ({"label": "error"}, {"failed": 1}),
        ({"label": "cancelled"}, {"cancelled": 1}),
        (
            {"label": "cancelled", "begun": True, "status": 200, "streamed_tokens": 7},
            {"cancelled": 1, "input_tokens": 20, "output_tokens": 7, "estimated": 1},
        ),
    ],
)
def test_tokens_come_from_the_engine_and_estimates_are_marked(outcome, expected):
    counter, call = UseCounter(), ended(**outcome)
    call.prediction.prompt_tokens = 20
    counter.ended(call)
    (row,) = counter.take(0.0)[0].rows
    assert row.counts == UseCounts(**{"requests": 1, **expected})


def test_seconds_of_audio_and_images_count():
    counter = UseCounter()
    counter.ended(ended(usage=Usage(audio_s=2.5)))
    for label, n in (("ok", 3), ("ok", "0_2"), ("ok", None), ("error", 4)):
        call = ended(label=label)
        call.api_path = "/v1/images/edits"
        call.request = SimpleNamespace(prompt=SimpleNamespace(document={"n": n}))
        counter.ended(call)
    (counts,) = rows(counter.take(NOON)).values()
    assert (counts.requests, counts.audio_ms, counts.images, counts.estimated) == (5, 2_500, 6, 0)


def test_gpu_time_and_its_price_are_whole_millionths():
    counter, call = UseCounter(), ended()
    call.outcome.gpu_s, call.outcome.dollars = 1.25, 0.0017361
    counter.ended(call)
    (row,) = counter.take(0.0)[0].rows
    assert (row.counts.gpu_us, row.counts.micro_dollars) == (1_250_000, 1_736)


def test_a_clock_set_back_does_not_reopen_a_confirmed_hour():
    counter = UseCounter()
    counter.ended(ended(NOON + HOUR_S))
    (value,) = counter.take(0.0)
    assert counter.confirmed({value.hour: value.written - 1}, NOON + 3 * HOUR_S) == []
    assert counter.confirmed({value.hour: value.written}, NOON + HOUR_S) == []  # the hour has not ended
    assert counter.confirmed({value.hour: value.written}, NOON + 3 * HOUR_S) == [value.hour]
    counter.ended(ended(NOON))
    assert [each.hour for each in counter.take(0.0)] == [value.hour + 1]


def test_unconfirmed_hours_are_kept_for_a_week_and_losses_are_counted():
    counter = UseCounter()
    for number in range(KEPT_HOURS + 2):
        counter.ended(ended(NOON + number * HOUR_S))
    assert len(counter.take(0.0)) == KEPT_HOURS
    assert counter.lost_hours == 2


def test_the_number_of_rows_is_bounded_and_clients_cannot_name_them(monkeypatch):
    monkeypatch.setattr(use, "MOST_ROWS", 2)
    counter = UseCounter()
    for key, pool in (("1", "exp-1-1"), ("1", "exp-2-7"), ("2", "demo"), ("3", "demo"), ("4", "demo"), ("2", "demo")):
        call = ended(key=key, pool=pool)
        call.adapter = "whatever the client asked for"
        counter.ended(call)
    found = rows(counter.take(0.0))
    assert {identity: counts.requests for identity, counts in found.items()} == {
        ("1", EXPERIMENTS, "llama"): 2,
        ("2", "demo", "llama"): 2,
        (OTHER, "", ""): 2,
    }
    assert counter.merged == 2


def test_the_value_is_json_with_its_version():
    counter = UseCounter()
    counter.ended(ended())
    (value,) = counter.take(7.0)
    assert json.loads(encode(value)) == {
        "schema": 1,
        "hour": 500_000,
        "written": 1,
        "at": 7.0,
        "rows": [["1", "key 1", "demo", "llama", [1, *[0] * 12]]],
    }
