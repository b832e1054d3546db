"""API keys on the data plane: which requests are admitted, to which pools, and what is forwarded to the engine."""

import asyncio
import time
from contextlib import asynccontextmanager

import httpx
import pytest

from router.contract.redis import redis_keys
from router.contract.redis.api_keys import ApiKeysValue
from router.contract.redis.codec import Unreadable, read
from router.options import arguments, source
from router.tests.conftest import World, entry, key_entry, running
from router.tests.engine import engine, hang
from router.tests.http.test_own_errors import code_of
from router.tests.values import stored

ALICE = "sk-weir-secret-alice"
BOB = "sk-weir-secret-bob"


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


async def keyed(world, *entries, required=("*",), engine=None, **policy):
    w = await world(engine, **policy)
    w.published.keys(*entries, required=required)
    auth = w.router.pools.auth
    await w.until(lambda: auth.ring is not None and len(auth.ring.by_hash) == len(entries), "keys are taken up")
    return w


@pytest.mark.parametrize(
    "headers", [bearer(ALICE), {"x-api-key": ALICE}, {"api-key": ALICE}, {"authorization": f"bearer  {ALICE}"}]
)
async def test_a_key_holder_is_served_and_the_key_is_not_forwarded(world, headers):
    w = await keyed(world, key_entry(ALICE))
    response = await w.ask(headers={**headers, "x-other": "kept"})
    assert response.status_code == 200
    received = w.engines[0].received[0].headers
    assert received["x-other"] == "kept"
    assert not {"authorization", "x-api-key", "api-key"} & set(received)
    pages = [(await w.client.get("/v1/models", headers=lines)).status_code for lines in (headers, {})]
    assert pages == [200, 401]


async def test_the_receipt_has_the_name_of_the_key_and_never_its_secret(world):
    w = await keyed(world, key_entry(ALICE))
    response = await w.ask(headers=bearer(ALICE))
    receipt = await w.receipt(response)
    assert receipt["key"] == "alice"
    assert ALICE not in str(receipt)


async def test_a_request_without_a_required_key_is_refused(world):
    w = await keyed(world, key_entry(ALICE))
    response = await w.ask()
    assert (response.status_code, code_of(response)) == (401, "missing_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert not w.engines[0].received


@pytest.mark.parametrize("secret", ["sk-weir-secret-mallory", "sk-other", ALICE + "x"])
async def test_a_wrong_key_is_refused(world, secret):
    w = await keyed(world, key_entry(ALICE))
    response = await w.ask(headers=bearer(secret))
    assert response.status_code == 401
    assert code_of(response) in ("invalid_api_key", "missing_api_key")


async def test_a_refusal_on_messages_has_the_shape_that_anthropic_clients_read(world):
    w = await keyed(world, key_entry(ALICE))
    response = await w.ask("/v1/messages", headers={"x-api-key": BOB})
    assert (response.status_code, response.json()["error"]["type"]) == (401, "authentication_error")


async def test_other_credentials_are_passed_to_the_engine_if_no_key_is_required(world):
    w = await keyed(world, key_entry(ALICE), required=())
    assert (await w.ask(headers=bearer("sk-engine"))).status_code == 200
    assert w.engines[0].received[0].headers["authorization"] == "Bearer sk-engine"


async def test_a_wrong_weir_key_is_refused_even_if_none_is_required(world):
    w = await keyed(world, key_entry(ALICE), required=())
    assert (await w.ask()).status_code == 200
    assert (await w.ask(headers=bearer(BOB))).status_code == 401


async def test_a_key_gives_access_to_its_pools_only(world):
    w = await keyed(world, key_entry(ALICE, pools=["other"]), key_entry(BOB, pools=["demo"]))
    refused = await w.ask(headers=bearer(ALICE))
    assert (refused.status_code, code_of(refused)) == (403, "pool_not_allowed")
    assert (await w.ask(headers=bearer(BOB))).status_code == 200


async def test_a_single_pool_can_require_keys(world):
    w = await keyed(world, key_entry(ALICE), required=("closed",))
    for pool in ("closed", "exp-1"):
        w.published.policy(pool)
        w.published.fleet(entry(f"{pool}-0", w.engines[0].url), pool=pool, model=pool)
        await w.until(lambda pool=pool: w.router.pools.get(pool) and w.router.pools.get(pool).ready)
    assert (await w.ask()).status_code == 200
    assert (await w.ask(model="closed")).status_code == 401
    assert (await w.ask(model="closed", headers=bearer(ALICE))).status_code == 200


async def test_pools_of_experiments_are_open_while_all_others_require_keys(world):
    w = await keyed(world, key_entry(ALICE))
    w.published.policy("exp-1")
    w.published.fleet(entry("exp-1-0", w.engines[0].url), pool="exp-1")
    await w.until(lambda: w.router.pools.get("exp-1") and w.router.pools.get("exp-1").ready)
    assert (await w.ask(headers={"x-weir-pool": "exp-1"})).status_code == 200


async def test_an_expired_key_is_refused(world):
    w = await keyed(world, key_entry(ALICE, expires_at=time.time() - 1), key_entry(BOB, expires_at=time.time() + 99))
    refused = await w.ask(headers=bearer(ALICE))
    assert (refused.status_code, code_of(refused)) == (401, "expired_api_key")
    assert (await w.ask(headers=bearer(BOB))).status_code == 200


async def test_a_revoked_key_is_refused_as_soon_as_it_is_published(world):
    w = await keyed(world, key_entry(ALICE), key_entry(BOB))
    assert (await w.ask(headers=bearer(ALICE))).status_code == 200
    w.published.keys(key_entry(BOB), required=("*",))
    await w.until(lambda: len(w.router.pools.auth.ring.by_hash) == 1)
    assert code_of(await w.ask(headers=bearer(ALICE))) == "invalid_api_key"
    assert "alice" not in w.router.pools.auth.meters


async def test_keys_that_redis_has_lost_stay_valid(world):
    w = await keyed(world, key_entry(ALICE))
    w.published.client.delete(redis_keys.API_KEYS)
    w.published.client.publish(redis_keys.CHANGED, redis_keys.API_KEYS)
    await w.router.source.live.poll()
    assert (await w.ask(headers=bearer(ALICE))).status_code == 200
    assert (await w.ask()).status_code == 401


async def test_unreadable_keys_are_reported_and_the_previous_ones_stay(world):
    w = await keyed(world, key_entry(ALICE))
    w.published.keys({"id": "x"}, required=())
    await w.until(lambda: any("API keys" in why for why in w.router.source.degraded()))
    assert (await w.ask()).status_code == 401


@asynccontextmanager
async def started_with(published, redis_url, raw):
    """Start a router while Redis holds `raw` as the API keys, or nothing if None."""
    async with engine() as made:
        published.policy()
        published.fleet(entry("demo-0", made.url))
        published.client.delete(redis_keys.API_KEYS)
        if raw is not None:
            published.client.set(redis_keys.API_KEYS, raw)
        async with running(redis_url) as (router, client):
            yield World(router, client, [made], published)


@pytest.mark.parametrize("headers", [{}, bearer(ALICE), bearer("sk-engine")])
async def test_before_the_keys_are_known_every_client_is_asked_to_retry_later(published, redis_url, headers):
    async with started_with(published, redis_url, None) as w:
        refused = await w.ask(headers=headers)
        assert (refused.status_code, code_of(refused)) == (503, "keys_unknown")
        assert refused.headers["retry-after"] == "1"
        assert not w.engines[0].received
        health = (await w.client.get("/healthz")).json()
        assert "has not read the API keys yet: every request is answered 503" in " ".join(health["degraded"])
        w.published.keys()
        await w.until(lambda: not w.router.pools.auth.closed)
        assert (await w.ask()).status_code == 200


@pytest.mark.parametrize("headers", [{}, bearer(ALICE)])
@pytest.mark.parametrize("raw", ["garbage", '{"schema":2,"required":[],"keys":[]}', '{"schema":1,"keys":[{"id":"x"}]}'])
async def test_unreadable_keys_at_the_start_refuse_every_request(published, redis_url, raw, headers):
    async with started_with(published, redis_url, raw) as w:
        refused = await w.ask(headers=headers)
        assert (refused.status_code, code_of(refused)) == (503, "keys_unreadable")
        assert "cannot read the published API keys" in refused.text
        assert refused.headers["retry-after"] == "5"
        assert not w.engines[0].received
        health = (await w.client.get("/healthz")).json()
        assert "cannot read the published API keys: every request is answered 503" in " ".join(health["degraded"])


async def test_keys_take_effect_once_they_can_be_read(published, redis_url):
    async with started_with(published, redis_url, '{"schema":2}') as w:
        assert code_of(await w.ask()) == "keys_unreadable"
        w.published.keys(key_entry(ALICE), required=("*",))
        await w.until(lambda: not w.router.pools.auth.closed)
        assert (await w.ask(headers=bearer(ALICE))).status_code == 200
        assert code_of(await w.ask()) == "missing_api_key"


async def test_unreadable_keys_that_are_deleted_count_as_unknown(published, redis_url):
    async with started_with(published, redis_url, '{"schema":2}') as w:
        w.published.client.delete(redis_keys.API_KEYS)
        await w.router.source.live.poll()
        assert code_of(await w.ask()) == "keys_unknown"


async def test_a_router_that_requires_keys_reports_it_before_it_knows_them(published, redis_url):
    async with started_with(published, redis_url, None) as w:
        w.router.pools.auth.required_everywhere = True
        assert code_of(await w.ask()) == "missing_api_key"
        assert code_of(await w.ask(headers=bearer(ALICE))) == "keys_unknown"


async def test_unreadable_limits_leave_the_last_ones_in_effect(world):
    w = await keyed(world, key_entry(ALICE, requests_per_min=1))
    w.published.keys(key_entry(ALICE, requests_per_min=-1), required=("*",))
    await w.until(lambda: any("API keys" in why for why in w.router.source.degraded()))
    assert [(await w.ask(headers=bearer(ALICE))).status_code for _ in range(2)] == [200, 429]


async def test_a_router_can_require_keys_whatever_is_published(world):
    w = await keyed(world, key_entry(ALICE), required=())
    w.router.pools.auth.required_everywhere = True
    assert code_of(await w.ask()) == "missing_api_key"
    assert (await w.ask(headers=bearer(ALICE))).status_code == 200


async def test_health_warns_of_a_public_router_that_requires_no_keys(world):
    w = await world(None)
    auth = w.router.pools.auth
    assert (await w.client.get("/healthz")).json()["warnings"] == []
    auth.exposed = True
    assert "API keys" in (await w.client.get("/healthz")).json()["warnings"][0]
    w.published.keys(required=("*",))
    await w.until(lambda: auth.ring.required_everywhere)
    assert (await w.client.get("/healthz")).json()["warnings"] == []


async def test_the_last_use_of_a_key_and_its_requests_are_published(world):
    w = await keyed(world, key_entry(ALICE))
    await w.ask(headers=bearer(ALICE))
    await w.until(lambda: w.published.client.hget(redis_keys.API_KEYS_USED, "alice"))
    text = (await w.client.get("/metrics")).text
    assert 'weir_router_key_requests_total{key="alice",outcome="ok"} 1.0' in text
    assert 'weir_router_key_tokens_total{key="alice"} 103.0' in text


async def test_each_key_has_its_own_queue(world):
    w = await keyed(world, key_entry(ALICE), key_entry(BOB), engine=hang, admission__max_inflight_per_instance=1)
    queue = w.router.pools.get("demo").queue
    running = asyncio.ensure_future(w.ask(headers=bearer(ALICE)))
    await w.until(lambda: w.engines[0].received)
    asked = []
    for i, secret in enumerate([ALICE, ALICE, BOB]):
        asked.append(asyncio.ensure_future(w.ask(headers={**bearer(secret), "x-request-id": f"r{i}"})))
        await w.until(lambda i=i: len(queue) == i + 1)
    w.engines[0].release.set()
    await asyncio.gather(running, *asked)
    served = [request.headers["x-request-id"].partition("-")[0] for request in w.engines[0].received[1:]]
    assert served == ["r0", "r2", "r1"]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"keys": [], "required": None},
        {"keys": [{"id": "x"}], "required": []},
        {"keys": [key_entry(ALICE, sha256="zz")], "required": []},
        {"keys": [key_entry(ALICE, requests_per_min=0)], "required": []},
        {"keys": [key_entry(ALICE, tokens_per_min=True)], "required": []},
        {"keys": [None], "required": []},
    ],
)
def test_a_document_of_keys_with_a_wrong_shape_is_refused_entirely(value):
    with pytest.raises(Unreadable):
        read(ApiKeysValue, stored(value))


async def test_a_body_sent_with_a_wrong_key_is_not_read(world):
    w = await keyed(world, key_entry(ALICE))
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(w.client.base_url).port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-weir-x\r\ncontent-length: 9\r\n\r\n"
    )
    assert b" 401 " in await asyncio.wait_for(reader.readuntil(b"\r\n"), 30)
    writer.close()


def test_a_standalone_router_admits_the_keys_of_its_file(capsys):
    with pytest.raises(SystemExit):
        arguments(["--instances", "http://127.0.0.1:1", "--require-keys"])
    why = "--require-keys goes with --redis only: with --instances, give --keys FILE"
    assert capsys.readouterr().err == f"router: {why}\n"


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (["--host", "127.0.0.1"], False),
        (["--host", "::1"], False),
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--require-keys"], False),
    ],
)
async def test_the_log_warns_of_a_public_router_that_requires_no_keys(published, redis_url, caplog, flags, warned):
    published.keys()
    shared = source(arguments(["--redis", redis_url, *flags]), "http://x")
    await shared.start()
    await shared.leave()
    assert ("API keys" in caplog.text) is warned
