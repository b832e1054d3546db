"""A delivery in a serving router: which version decides, what is reported and how it is rolled back."""

import asyncio
import json
import time

import pytest
import redis

from router.contract.redis import redis_keys
from router.policy.schema import document
from router.pool import fleet_view
from router.sync import live_state
from router.tests.conftest import running
from router.tests.deliveries import arm_of, put, rollout, split, state, watch
from router.tests.engine import first_then_wait
from router.tests.values import loaded, stored


def demo(router):
    return router.pools.get("demo")


def is_live(router):
    return demo(router).split.state(time.perf_counter()) != "on"


@pytest.fixture
def raising(monkeypatch):
    """Make lpwl, the candidate in these tests, raise on every decision."""
    decide = fleet_view.decide

    def raises(request, instances, policy, draw):
        if policy["strategy.name"] == "lpwl":
            raise KeyError("strategy.nosuch")
        return decide(request, instances, policy, draw)

    monkeypatch.setattr(fleet_view, "decide", raises)


@pytest.mark.slow
async def test_the_version_of_its_arm_decides_a_session_and_the_receipt_records_it(world):
    w = await world(None)
    await split(w, 0.5)
    for number in range(12):
        session = f"session {number}"
        arm = arm_of(session, 0.5)
        answers = [await w.ask(headers={"x-session-id": session}, stream=stream) for stream in (False, True)]
        receipts = [await w.receipt(answer) for answer in answers]
        version = 44 if arm == "candidate" else 42
        assert {answer.headers["x-weir-policy"] for answer in answers} == {str(version)}
        assert {(one["delivery"], one["arm"], one["version"]) for one in receipts} == {(7, arm, version)}
        assert {one["strategy"] for one in receipts} == {"lpwl" if arm == "candidate" else "round_robin"}
    recorded = [json.loads(fields[b"t"]) for _, fields in w.published.client.xrange(redis_keys.TRAFFIC)]
    assert {(one["delivery"], one["arm"], one["version"]) for one in recorded} == {
        (7, "candidate", 44),
        (7, "control", 42),
    }


async def test_without_a_delivery_receipts_mention_none(world):
    w = await world(None)
    receipt = await w.receipt(await w.ask())
    assert not {"delivery", "arm", "shadow"} & receipt.keys()
    assert (await w.client.get("/healthz")).json()["pools"]["demo"]["split"] is None
    own = loaded(w.published.client.get(redis_keys.router_key("router-1")))
    assert (own["pools"]["demo"]["generation"], own["pools"]["demo"]["split"]) == (0, "")


async def test_each_generation_is_acknowledged_once_it_is_served(world):
    w = await world(None)
    with w.published.client.pubsub() as channel:
        channel.subscribe(redis_keys.ACKS)
        await split(w, 0.25, generation=3)
        put(w.published.client, {"mode": "full", "generation": 4})
        await w.until(lambda: demo(w.router).generation == 4)
        acks = [await w.message(channel) for _ in range(2)]
    assert [(ack["generation"], ack["split"], ack["version"]) for ack in acks] == [(3, "on", 42), (4, "", 42)]
    await split(w, 0.25, generation=5)

    def served() -> tuple[int, str]:
        told = loaded(w.published.client.get(redis_keys.router_key("router-1")))["pools"]["demo"]
        return told["generation"], told["split"]

    await w.until(lambda: served() == (5, "on"), "its report has the fifth generation")
    health = (await w.client.get("/healthz")).json()["pools"]["demo"]["split"]
    assert (health["state"], health["delivery"], health["generation"], health["share"]) == ("on", 7, 5, 0.25)


async def test_a_router_serves_live_until_it_has_read_policy_and_watch(world):
    w = await world(None)
    put(w.published.client, rollout(1, 1.0))
    await w.until(lambda: demo(w.router).generation == 1)
    assert (state(w), (await w.ask()).headers["x-weir-policy"]) == ("off", "42")
    watch(w.published.client, delivery=6)
    await w.router.source.live.poll()
    assert state(w) == "off"
    watch(w.published.client)
    await w.router.source.live.poll()
    assert (state(w), (await w.ask()).headers["x-weir-policy"]) == ("on", "44")


async def test_without_its_watch_live_serves_until_a_new_generation(world):
    w = await world(None)
    watch(w.published.client)
    put(w.published.client, rollout(1, 1.0))
    await w.until(lambda: state(w) == "on")
    assert (await w.ask()).headers["x-weir-policy"] == "44"
    w.published.client.delete(redis_keys.watch_key("demo"))
    demo(w.router).split._watched_until = time.perf_counter()
    await w.until(lambda: state(w) == "unwatched")
    assert (await w.ask()).headers["x-weir-policy"] == "42"
    assert "delivery 7 has not been watched" in " ".join((await w.client.get("/healthz")).json()["degraded"])
    watch(w.published.client)
    await w.router.source.live.poll()
    assert (await w.ask()).headers["x-weir-policy"] == "42"
    await split(w, 1.0, generation=2)
    assert (await w.ask()).headers["x-weir-policy"] == "44"


async def test_a_watch_that_never_expires_counts_as_long_as_a_new_one(world):
    w = await world(None)
    w.published.client.set(redis_keys.watch_key("demo"), stored({"delivery": 7, "generation": 1}))
    put(w.published.client, rollout(1, 1.0))
    await w.until(lambda: state(w) == "on")
    assert demo(w.router).split._watched_until < time.perf_counter() + 30


async def test_a_signal_that_cannot_be_read_is_counted_and_ignored(world):
    w = await world(None)
    await split(w, 1.0)
    for key in (redis_keys.stop_key("demo"), redis_keys.watch_key("demo")):
        w.published.client.set(key, "{")
    await w.router.source.live.poll()
    assert state(w) == "on"
    assert w.router.source.live.unreadable >= 2
    assert "weir:stop:demo: Input data was truncated" in " ".join(w.router.source.live.degraded())
    w.published.client.delete(redis_keys.stop_key("demo"), redis_keys.watch_key("demo"))
    await w.router.source.live.poll()
    assert w.router.source.live.degraded() == []


# Stops


async def test_a_stop_takes_effect_without_a_poll_until_a_new_generation(world, monkeypatch):
    monkeypatch.setattr(live_state, "POLL_S", 3600.0)
    w = await world(None)
    await split(w, 1.0)
    stop = {"delivery": 7, "why": "an operator pressed Abort", "by": "person", "at": time.time()}
    w.published.client.set(redis_keys.stop_key("demo"), stored(stop))
    w.published.client.publish(redis_keys.CHANGED, redis_keys.stop_key("demo"))
    await w.until(lambda: state(w) != "on")
    assert (state(w), (await w.ask()).headers["x-weir-policy"]) == ("tripped", "42")
    put(w.published.client, rollout(2, 1.0))  # the stop is still there
    await w.until(lambda: demo(w.router).generation == 2)
    await w.until(lambda: state(w) == "tripped")
    w.published.client.delete(redis_keys.stop_key("demo"))
    await split(w, 1.0, generation=3)


@pytest.mark.slow
async def test_a_stop_is_noticed_at_the_start_and_by_the_poll(world, redis_url):
    w = await world(None)
    await split(w, 1.0)
    stop = {"delivery": 0, "why": "all of them", "by": "person", "at": time.time()}
    w.published.client.set(redis_keys.stop_key("demo"), stored(stop))
    async with running(redis_url, "router-2") as (second, _):
        assert demo(second).split.state(time.perf_counter()) == "tripped"
    await w.until(lambda: state(w) == "tripped", "the poll finds it")


async def test_a_candidate_that_raises_is_stopped_everywhere_and_its_request_is_served(
    world, redis_url, raising, monkeypatch
):
    monkeypatch.setattr(live_state, "POLL_S", 3600.0)  # the routers notify each other
    w = await world(None)
    async with running(redis_url, "router-2") as (second, _):
        await split(w, 1.0)
        await w.until(lambda: not is_live(second))
        answer = await w.ask()
        await w.until(lambda: is_live(second))
    assert (answer.status_code, answer.headers["x-weir-policy"], state(w)) == (200, "42", "tripped")
    receipt = await w.receipt(answer)
    assert (receipt["arm"], receipt["version"], receipt["outcome"]) == ("candidate", 42, "ok")
    stop = loaded(w.published.client.get(redis_keys.stop_key("demo")))
    assert (stop["delivery"], stop["by"], stop["request"]) == (7, "router", answer.headers["x-request-id"])
    assert stop["why"] == "version 44 cannot decide: KeyError: 'strategy.nosuch'"
    assert 0 < w.published.client.ttl(redis_keys.stop_key("demo")) <= redis_keys.STOP_TTL_S


async def test_a_stop_that_could_not_be_sent_does_not_overwrite_the_next_delivery(world, raising, monkeypatch):
    w = await world(None)
    await split(w, 1.0)
    signals = w.router.source.live.signals
    send, sent = signals._send, asyncio.Event()

    async def unsent(key, stop):
        sent.set()
        raise redis.ConnectionError("Redis is away")

    monkeypatch.setattr(signals, "_send", unsent)
    await w.ask()
    await sent.wait()
    stop = {"delivery": 8, "why": "an operator pressed Abort", "by": "person", "at": time.time()}
    w.published.client.set(redis_keys.stop_key("demo"), stored(stop))
    put(w.published.client, rollout(2, 1.0, delivery=8))
    await w.until(lambda: demo(w.router).generation == 2)
    monkeypatch.setattr(signals, "_send", send)
    await signals.send_stops()
    assert loaded(w.published.client.get(redis_keys.stop_key("demo")))["delivery"] == 8
    assert not signals._stops


# Unreadable values


async def test_a_candidate_that_cannot_be_read_leaves_live_in_force_and_is_not_acknowledged(world):
    w = await world(None)
    watch(w.published.client)
    bad = rollout(1, 1.0)
    bad["candidate"]["document"] = document.default("least_requests")
    put(w.published.client, bad, version=43)
    await w.until(lambda: w.router.source.live.unreadable == 1)
    assert (state(w), (await w.ask()).headers["x-weir-policy"]) == ("unreadable", "43")
    degraded = " ".join(w.router.source.live.degraded())
    assert "policy of pool demo: candidate version 44: the document does not match its sha256" in degraded
    await w.router.source.reporter.report()
    served = loaded(w.published.client.get(redis_keys.router_key("router-1")))["pools"]["demo"]
    assert (served["version"], served["generation"], served["split"]) == (43, 0, "unreadable")
    await split(w, 1.0, generation=2)
    assert w.router.source.live.degraded() == []


# Requests in flight


async def queued(w, **body):
    asking = asyncio.ensure_future(w.ask(**body))
    await w.until(lambda: len(demo(w.router).queue))
    return asking


FULL = {"admission.max_inflight_per_instance": 1}


@pytest.mark.parametrize("ends", ["stop", "full", "standstill", "generation"])
async def test_a_queued_request_keeps_its_arm_and_is_decided_by_the_version_in_force_at_its_turn(world, ends):
    w = await world(first_then_wait)
    await split(w, 1.0, overrides=FULL)
    body = {"model": "llama", "prompt": "x", "stream": True}
    async with w.client.stream("POST", "/v1/completions", json=body) as first:
        chunks = first.aiter_raw()
        await anext(chunks)
        second = await queued(w, stream=True)
        if ends == "stop":
            demo(w.router).trip("a test", "r")
        elif ends == "full":
            put(w.published.client, {"mode": "full", "generation": 2})
            await w.until(lambda: demo(w.router).generation == 2)
        elif ends == "standstill":
            await split(w, 0.0, generation=2, overrides=FULL)
        else:
            await split(w, 1.0, generation=2, overrides=FULL)
            await asyncio.sleep(0.05)
            assert not second.done()
        w.engines[0].release.set()
        answer = await second
    receipt = await w.receipt(answer)
    decided = 44 if ends == "generation" else 42  # a split that ends or trips hands the request to live
    assert (receipt["arm"], receipt["delivery"], receipt["version"]) == ("candidate", 7, decided)
    assert answer.headers["x-weir-policy"] == str(decided)


async def test_a_request_follows_its_own_version_over_retries(world):
    w = await world(None, None)
    await split(w, 1.0, overrides={"failure.retries": 0})
    w.engines[0].behaviour = w.engines[1].behaviour = failing
    refused = await w.receipt(await w.ask())
    assert (refused["version"], refused["retries"]) == (44, 0)
    put(w.published.client, {"mode": "full", "generation": 2})
    await w.until(lambda: demo(w.router).generation == 2)
    for endpoint in demo(w.router).endpoints.values():
        endpoint.breaker.served()
    assert (await w.receipt(await w.ask()))["retries"] == 1


async def failing(engine, request, writer):
    writer.close()
