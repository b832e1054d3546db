"""A pool that wakes on demand: the waiting time of its requests is limited, and refusals say when to retry."""

import asyncio
import json

import pytest

from router.contract.redis import redis_keys
from router.contract.redis.published import WakeRule
from router.pool.wake import MOST_BYTES, WakeHold, Wakes
from router.tests.conftest import entry, key_entry
from router.tests.http.test_own_errors import code_of

RULE = {"max_held": 3, "max_wait_s": 30.0}


def test_retry_after_is_the_remainder_of_the_time_that_nine_of_ten_wakes_took():
    wakes = Wakes()
    assert wakes.hold(0, 1, 0.0) is None
    wakes.rule = WakeRule(max_held=2, max_wait_s=60.0)
    assert wakes.hold(0, 1, 0.0) == WakeHold(60.0, 30)
    for number in range(10):
        wakes.hold(0, 1, number * 1_000.0)
        wakes.ready(number * 1_000.0 + number)
        wakes.ready(number * 1_000.0 + 500)  # no request waits
    assert wakes.expected_s == 8.0
    assert wakes.hold(0, 1, 20_000.0).retry_after_s == 8
    assert wakes.hold(1, 1, 20_006.0).retry_after_s == 2
    assert wakes.hold(1, 1, 20_009.0).retry_after_s == 8, "it takes longer than nine of ten"
    assert wakes.hold(0, 1, 20_100.0).retry_after_s == 8, "that one has ended long ago"


def test_only_a_limited_number_and_size_of_requests_wait():
    wakes = Wakes()
    wakes.rule = WakeRule(max_held=2, max_wait_s=60.0)
    assert "2 requests wait for it already" in wakes.hold(2, 1, 0.0).refused
    wakes.waiting_bytes = MOST_BYTES - 10
    assert "256 MiB wait for it already" in wakes.hold(1, 11, 0.0).refused
    assert [wakes.hold(2, size, 0.0).is_full for size in (10, 11)] == [True, False]
    assert not wakes.hold(1, 10, 0.0).refused
    wakes.waiting_bytes = 0
    assert not wakes.hold(0, MOST_BYTES + 1, 0.0).refused


async def asleep(world, **rule):
    """Return a pool that is asleep although the engine of `demo-0` runs."""
    w = await world(None)
    pool = w.router.pools.get("demo")
    w.published.fleet(wake={**RULE, **rule})
    await w.until(lambda: not pool.endpoints)
    return w, pool


async def test_requests_wait_for_the_wake_and_are_all_served(world):
    w, pool = await asleep(world)
    asks = [asyncio.ensure_future(w.ask(prompt=f"request {number}")) for number in range(3)]
    await w.until(lambda: len(pool.queue) == 3)
    refused = await w.ask()
    assert (refused.status_code, code_of(refused)) == (503, "waking")
    assert int(refused.headers["retry-after"]) in range(1, 31)
    assert 'weir_router_held_requests{pool="demo"} 3.0' in (await w.client.get("/metrics")).text
    status = redis_keys.router_key("router-1")
    await w.until(lambda: json.loads(w.published.client.get(status) or "{}").get("queued") == {"demo": {"warm": 3}})
    health = (await w.client.get("/healthz")).json()
    assert not any("demo" in line for line in health["degraded"])
    gone = asks.pop()
    gone.cancel()
    await w.until(lambda: len(pool.queue) == 2)
    await asyncio.sleep(0.05)
    w.published.fleet(entry("demo-0", w.engines[0].url), wake=RULE)
    answers = await asyncio.gather(*asks)
    assert {one.status_code for one in answers} == {200}
    assert all(float(one.headers["x-weir-wake-wait"]) > 0 for one in answers)
    assert (await w.receipt(answers[0]))["wake_ms"] >= 50
    assert pool.wakes.waiting_bytes == 0
    awake = await w.ask()
    assert "x-weir-wake-wait" not in awake.headers
    assert "wake_ms" not in await w.receipt(awake)


async def test_a_key_that_fills_the_queue_makes_room_for_another_key(world):
    w, pool = await asleep(world, max_held=2)
    w.published.keys(key_entry("sk-weir-hog"), key_entry("sk-weir-other"))
    auth = w.router.pools.auth
    await w.until(lambda: auth.ring is not None and len(auth.ring.by_hash) == 2, "the keys")
    asks = []
    for key in ("hog", "hog", "other"):
        asks.append(asyncio.ensure_future(w.ask(headers={"authorization": f"Bearer sk-weir-{key}"})))
        await w.until(lambda: len(pool.queue) == min(len(asks), 2))
    displaced = await asks[1]
    assert (displaced.status_code, code_of(displaced)) == (429, "displaced")
    again = await w.ask(headers={"authorization": "Bearer sk-weir-hog"})
    assert (again.status_code, code_of(again)) == (503, "waking")
    w.published.fleet(entry("demo-0", w.engines[0].url), wake=RULE)
    assert [(await ask).status_code for ask in (asks[0], asks[2])] == [200, 200]


async def test_a_wake_that_takes_too_long_refuses_the_waiting_requests(world):
    w, _ = await asleep(world, max_wait_s=0.2)
    late = await w.ask()
    assert (late.status_code, code_of(late)) == (503, "waking")
    assert "no instance became ready within 0.2 s" in late.text
    assert (await w.receipt(late))["outcome"] == "refused"
    hurried = await w.ask(headers={"x-weir-deadline-ms": "50"})
    assert code_of(hurried) == "deadline_exceeded"


async def test_requests_for_a_pool_that_nothing_wakes_are_refused_at_once(world):
    w, pool = await asleep(world)
    w.published.fleet()
    await w.until(lambda: pool.wakes.rule is None)
    assert code_of(await w.ask()) == "no_instance_ready"


@pytest.mark.parametrize("priority", ["5", "-5"])
async def test_a_band_does_not_change_whether_a_request_waits(world, priority):
    w, pool = await asleep(world, max_held=1)
    ask = asyncio.ensure_future(w.ask(headers={"x-weir-priority": priority}))
    await w.until(lambda: len(pool.queue) == 1)
    w.published.fleet(entry("demo-0", w.engines[0].url), wake=RULE)
    assert (await ask).status_code == 200
