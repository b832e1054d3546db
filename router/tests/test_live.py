"""A serving router applies policy and fleet, with or without a message; it ignores what it cannot read."""

import asyncio
import json
import time

import pytest

from router.contract.redis import redis_keys
from router.policy.schema import document
from router.sync.reporter import Reporter
from router.tests.conftest import entry, running
from router.tests.engine import first_then_wait
from router.tests.values import loaded, stored


def demo(w):
    return w.router.pools.get("demo")


async def test_a_published_version_is_applied_and_acknowledged(world):
    w = await world(None)
    with w.published.client.pubsub() as channel:
        channel.subscribe(redis_keys.ACKS)
        version = w.published.policy(strategy="least_requests")
        await w.until(lambda: demo(w).version == version)
        ack = await w.message(channel)
    assert (ack["router"], ack["pool"], ack["version"]) == ("router-1", "demo", version)
    own = loaded(w.published.client.get(redis_keys.router_key("router-1")))
    assert own["pools"]["demo"]["version"] == version
    assert (await w.ask()).headers["x-weir-policy"] == str(version)


async def test_a_version_whose_message_was_lost_is_applied_by_the_poll(world):
    w = await world(None)
    made = document.default("lpwl")
    value = {"policy": "default", "version": 9, "document": made, "sha256": document.sha256(made)}
    w.published.client.set(redis_keys.policy_key("demo"), stored(value))
    await w.until(lambda: demo(w).version == 9)
    assert demo(w).policy["strategy.name"] == "lpwl"


@pytest.mark.parametrize("number", [1 << 80, -1, 1e400])
async def test_a_number_that_no_page_could_show_makes_the_value_unreadable(world, number):
    w = await world(None)
    made = document.default()
    policy = {"policy": "default", "version": number, "document": made, "sha256": document.sha256(made)}
    fleet = {"pool": "demo", "model": "llama", "at": number, "instances": []}
    for key, value in ((redis_keys.policy_key("demo"), policy), (redis_keys.fleet_key("demo"), fleet)):
        before = w.router.source.live.unreadable
        w.published.client.set(key, json.dumps({"schema": 1, **value}).replace("Infinity", "1e400"))
        w.published.client.publish(redis_keys.CHANGED, key)
        await w.until(lambda before=before: w.router.source.live.unreadable == before + 1)
    for page in ("/healthz", "/v1/models", "/metrics"):
        assert (await w.client.get(page)).status_code == 200
    assert (await w.ask()).headers["x-weir-policy"] == "1"


async def test_an_unreadable_policy_is_counted_and_the_last_good_one_stays(world):
    w = await world(None)
    bad = document.apply_overrides(document.default(), {"classes.heavy_new_tokens": -1})
    for raw in ("{", '{"schema":99}', stored({"policy": "default", "version": 7, "document": bad, "sha256": ""})):
        before = w.router.source.live.unreadable
        w.published.client.set(redis_keys.policy_key("demo"), raw)
        w.published.client.publish(redis_keys.CHANGED, redis_keys.policy_key("demo"))
        await w.until(lambda before=before: w.router.source.live.unreadable == before + 1)
    health = (await w.client.get("/healthz")).json()
    assert health["status"] == "degraded"
    assert "heavy_new_tokens" in " ".join(health["degraded"])
    assert (await w.ask()).headers["x-weir-policy"] == "1"
    version = w.published.policy()
    await w.until(lambda: demo(w).version == version)
    await w.until(lambda: not w.router.source.live.degraded())


@pytest.mark.parametrize("sha256", [document.sha256(document.default("lpwl")), ""])
async def test_a_policy_that_does_not_match_its_sha256_is_counted_and_the_last_good_one_stays(world, sha256):
    w = await world(None)
    value = {"policy": "default", "version": 7, "document": document.default("session_sticky"), "sha256": sha256}
    w.published.client.set(redis_keys.policy_key("demo"), stored(value))
    w.published.client.publish(redis_keys.CHANGED, redis_keys.policy_key("demo"))
    await w.until(lambda: w.router.source.live.unreadable == 1)
    assert "policy of pool demo: version 7: the document does not match its sha256" in " ".join(
        w.router.source.live.degraded()
    )
    assert (demo(w).version, demo(w).policy["strategy.name"]) == (1, "round_robin")
    assert (await w.ask()).headers["x-weir-policy"] == "1"


async def test_an_unreadable_fleet_is_counted_and_the_last_good_one_stays(world):
    w = await world(None)
    w.published.client.set(redis_keys.fleet_key("demo"), stored({"model": "llama", "instances": [{"id": "x"}]}))
    w.published.client.publish(redis_keys.CHANGED, redis_keys.fleet_key("demo"))
    await w.until(lambda: w.router.source.live.unreadable)
    assert (await w.ask()).status_code == 200


async def test_a_drained_instance_gets_no_new_requests_and_finishes_its_own(world):
    w = await world(first_then_wait, None)
    body = {"model": "llama", "prompt": "x", "stream": True}
    async with w.client.stream("POST", "/v1/completions", json=body) as running_stream:
        assert running_stream.headers["x-weir-instance"] == "demo-0"
        chunks = running_stream.aiter_raw()
        await anext(chunks)
        draining = entry("demo-0", w.engines[0].url, state="draining", routable=False, reason="asked to")
        w.published.fleet(draining, entry("demo-1", w.engines[1].url))
        await w.until(lambda: demo(w).ready == 1)
        assert {(await w.ask()).headers["x-weir-instance"] for _ in range(4)} == {"demo-1"}
        w.engines[0].release.set()
        rest = b"".join([chunk async for chunk in chunks])
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_session_moves_when_its_instance_drains(world):
    w = await world(None, None, strategy="session_sticky")
    home = (await w.ask(headers={"x-session-id": "s"})).headers["x-weir-instance"]
    entries = [entry(f"demo-{i}", engine.url) for i, engine in enumerate(w.engines)]
    w.published.fleet(*(each | {"routable": each["id"] != home, "state": "draining"} for each in entries))
    await w.until(lambda: demo(w).ready == 1)
    away = (await w.ask(headers={"x-session-id": "s"})).headers["x-weir-instance"]
    assert away != home
    w.published.fleet(*entries)
    await w.until(lambda: demo(w).ready == 2)
    assert (await w.ask(headers={"x-session-id": "s"})).headers["x-weir-instance"] == away


async def test_a_new_epoch_ends_the_requests_of_the_old_one(world):
    w = await world(first_then_wait)
    body = {"model": "llama", "prompt": "x", "stream": True}
    async with w.client.stream("POST", "/v1/completions", json=body) as running_stream:
        chunks = running_stream.aiter_raw()
        await anext(chunks)
        w.published.fleet(entry("demo-0", w.engines[0].url, epoch=2))
        rest = b"".join([chunk async for chunk in chunks])
    assert b"upstream_failed" in rest


async def test_a_new_epoch_forgets_the_cache_of_its_instance(world):
    w = await world(None)
    await w.ask(prompt="x" * 5_000)
    assert demo(w).index.chunks("demo-0") > 0
    w.published.fleet(entry("demo-0", w.engines[0].url, epoch=2))
    await w.until(lambda: demo(w).index.chunks("demo-0") == 0)


async def test_a_deleted_pool_is_no_longer_served(world):
    w = await world(None)
    w.published.client.srem(redis_keys.POOLS, "demo")
    w.published.client.delete(redis_keys.fleet_key("demo"))
    w.published.client.publish(redis_keys.CHANGED, redis_keys.fleet_key("demo"))
    await w.until(lambda: demo(w) is None)
    assert (await w.ask()).status_code == 503


@pytest.mark.slow
async def test_the_poll_notices_a_deleted_pool_as_well(world):
    w = await world(None)
    w.published.fleet(pool="exp-1", model="m")
    await w.until(lambda: w.router.pools.get("exp-1"))
    await w.router.source.live.poll()
    w.published.client.srem(redis_keys.POOLS, "exp-1")
    w.published.client.delete(redis_keys.fleet_key("exp-1"))
    await w.until(lambda: w.router.pools.get("exp-1") is None)


async def test_a_starting_router_reports_no_pool_before_it_has_its_instances(world, redis_url, monkeypatch):
    await world(None)
    reported = []
    made = Reporter.status
    monkeypatch.setattr(Reporter, "status", lambda self, now: reported.append(made(self, now)) or reported[-1])
    async with running(redis_url, "router-2"):
        pass
    named = [said for said in reported if said.id == "router-2" and "demo" in said.pools]
    assert named
    assert all(said.degraded == () for said in named)


async def test_a_redis_that_returned_empty_does_not_mean_that_the_fleet_is_gone(world):
    w = await world(None)
    w.published.client.flushall()
    await w.router.source.live.poll()
    await w.router.source.live.poll()
    assert (await w.ask()).status_code == 200
    assert "missing in Redis" in " ".join((await w.client.get("/healthz")).json()["degraded"])


async def test_the_scraped_figures_reach_the_policy(world):
    w = await world(None)
    sample = {"id": "demo-0", "epoch": 1, "at": time.time(), "kv_usage": 0.5, "waiting": 3}
    w.published.client.set(redis_keys.instance_key("demo-0"), stored(sample))
    endpoint = demo(w).endpoints["demo-0"]
    await w.until(lambda: endpoint.kv_usage == 0.5)
    assert (endpoint.view("").kv_usage, endpoint.view("").waiting) == (0.5, 3)


async def test_a_sample_of_an_earlier_epoch_is_ignored(world):
    w = await world(None)
    sample = {"id": "demo-0", "epoch": 0, "at": time.time(), "kv_usage": 0.5, "waiting": 3}
    w.published.client.set(redis_keys.instance_key("demo-0"), stored(sample))
    endpoint = demo(w).endpoints["demo-0"]
    await w.until(lambda: endpoint.sampled_at == sample["at"])
    assert (endpoint.kv_usage, endpoint.waiting) == (0.0, 0)


async def test_the_load_of_the_other_routers_counts(world, redis_url):
    w = await world(first_then_wait)
    async with running(redis_url, "router-2") as (other, client):
        await w.until(lambda: other.pools.get("demo") is not None)
        asking = asyncio.ensure_future(
            client.post("/v1/completions", json={"model": "llama", "prompt": "x", "stream": True})
        )
        endpoint = demo(w).endpoints["demo-0"]
        await w.until(lambda: endpoint.others == (1, 0, 1), "its stream is seen here")
        assert (endpoint.view("").running, endpoint.view("").decodes) == (1, 1)
        w.engines[0].release.set()
        await asking
        await w.until(lambda: endpoint.others == (0, 0, 0))


async def test_a_router_sends_heartbeats_and_removes_its_name_when_it_ends(world, redis_url, live_redis):
    await world(None)
    async with running(redis_url, "router-9"):
        while live_redis.zscore(redis_keys.ROUTERS, "router-9") is None:
            await asyncio.sleep(0.01)
        own = loaded(live_redis.get(redis_keys.router_key("router-9")))
        assert own["id"] == "router-9"
        assert own["pools"]["demo"]["policy"] == "default"
    assert live_redis.zscore(redis_keys.ROUTERS, "router-9") is None
    assert live_redis.get(redis_keys.router_key("router-9")) is None


async def test_health_reports_version_age_and_instances(world):
    w = await world(None)
    health = (await w.client.get("/healthz")).json()
    assert (health["status"], health["degraded"], health["redis"]) == ("ok", [], True)
    assert health["pools"]["demo"]["version"] == 1
    assert health["pools"]["demo"]["fleet_age_s"] < 5
    assert (health["pools"]["demo"]["ready"], health["pools"]["demo"]["instances"]) == (1, 1)


async def test_a_pool_without_a_policy_is_served_under_the_default_and_reports_it(world, live_redis):
    w = await world(None)
    w.published.fleet(entry("b-0", w.engines[0].url), pool="bare", model="other")
    await w.until(lambda: w.router.pools.get("bare"))
    assert (await w.ask(model="other")).headers["x-weir-policy"] == "0"
    health = (await w.client.get("/healthz")).json()
    assert "pool bare: no policy has been published" in " ".join(health["degraded"])
    assert json.loads(live_redis.get(redis_keys.fleet_key("bare")))["model"] == "other"


async def test_a_pool_without_a_ready_instance_is_degraded(world):
    w = await world(None)
    w.published.fleet(entry("demo-0", w.engines[0].url, routable=False, state="failed"))
    await w.until(lambda: "pool demo: none of 1 instances is ready" in w.router.source.live.degraded())
    assert (await w.client.get("/healthz")).json()["status"] == "degraded"


async def test_health_reports_samples_that_have_stopped(world, live_redis):
    w = await world(None)
    sample = {"id": "demo-0", "pool": "demo", "epoch": 1, "at": time.time() - 20, "kv_usage": 0.5, "waiting": 0}
    live_redis.set(redis_keys.instance_key("demo-0"), stored(sample))
    await w.until(lambda: "no instance was sampled for 2" in " ".join(w.router.source.live.degraded()))
