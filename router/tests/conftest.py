"""A router in this process, with its real server, a real Redis and fake engines."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import redis
from msgspec import convert

from router.app import Router
from router.contract.redis import redis_keys
from router.contract.redis.published import FleetValue, PublishedInstance
from router.http import server
from router.http.server import HttpServer, listen
from router.policy.schema import document
from router.spans.settings import SpanSettings
from router.sync import live_state, peers, redis_source, response_directory, use_reports
from router.sync.redis_source import RedisSource
from router.tests.engine import Behaviour, Engine, engine
from router.tests.values import stored


class Published:
    """Writes to Redis the values that the control plane would publish."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.versions = 0

    def policy(self, pool: str = "demo", strategy: str = "round_robin", order: int = 0, **overrides: object) -> int:
        """Publish the next version; in the names of overrides, __ replaces the dot."""
        self.versions += 1
        values = {path.replace("__", "."): value for path, value in overrides.items()}
        made = document.apply_overrides(document.default(strategy), values)
        value = {
            "pool": pool,
            "policy": "default",
            "version": self.versions,
            "sha256": document.sha256(made),
            "document": made,
            "rollout": {"mode": "full"},
            "published_at": time.time(),
            "order": order,
        }
        self._put(pool, redis_keys.policy_key(pool), value)
        return self.versions

    def fleet(
        self, *entries: dict[str, Any], pool: str = "demo", model: str = "llama", order: int = 0, **more: Any
    ) -> None:
        value = {"pool": pool, "model": model, "at": time.time(), "instances": list(entries), "order": order, **more}
        self._put(pool, redis_keys.fleet_key(pool), value)

    def keys(self, *entries: dict[str, Any], required: tuple[str, ...] = (), **more: Any) -> None:
        value = {"at": time.time(), "required": list(required), "keys": list(entries), **more}
        self.client.set(redis_keys.API_KEYS, stored(value))
        self.client.publish(redis_keys.CHANGED, redis_keys.API_KEYS)

    def _put(self, pool: str, key: str, value: dict[str, Any]) -> None:
        self.client.set(redis_keys.API_KEYS, stored({"required": [], "keys": []}), nx=True)  # never without
        self.client.sadd(redis_keys.POOLS, pool)
        self.client.set(key, stored(value))
        self.client.publish(redis_keys.CHANGED, key)


def entry(name: str, url: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "epoch": 1,
        "url": url,
        "state": "ready",
        "routable": True,
        "reason": "",
        "kind": "sim",
        "node": "local",
        "block_size": 16,
        "kv_blocks": 10_000,
        **changes,
    }


def instance(name: str, url: str, **changes: Any) -> PublishedInstance:
    return convert(entry(name, url, **changes), PublishedInstance)


def fleet(*instances: PublishedInstance, at: float = 1.0, model: str = "llama") -> FleetValue:
    return FleetValue(pool="demo", model=model, at=at, instances=instances)


def key_entry(secret: str, **changes: Any) -> dict[str, Any]:
    """A published key, named by the last part of its secret."""
    return {
        "id": secret.rpartition("-")[2],
        "name": secret.rpartition("-")[2],
        "sha256": hashlib.sha256(secret.encode()).hexdigest(),
        "pools": [],
        "requests_per_min": None,
        "tokens_per_min": None,
        "expires_at": None,
        **changes,
    }


class World:
    """A router, its engines `demo-0`, `demo-1`, …, a client, and the content of Redis."""

    def __init__(self, router: Router, client: httpx.AsyncClient, engines: list[Engine], published: Published) -> None:
        self.router = router
        self.client = client
        self.engines = engines
        self.published = published

    async def ask(self, path: str = "/v1/completions", **body: Any) -> httpx.Response:
        headers = body.pop("headers", {})
        return await self.client.post(path, json={"model": "llama", "prompt": "hello", **body}, headers=headers)

    async def until(self, true: Callable[[], Any], what: str = "") -> None:
        """Wait until the condition is true; fail if it does not become true in time."""
        for _ in range(3000):
            if true():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"never came true: {what or true}")

    async def message(self, channel: redis.client.PubSub) -> dict[str, Any]:
        """Return the next message of the channel. The router, in the same event loop, may not have sent it yet."""
        got: list[Any] = []
        await self.until(lambda: got or got.extend(filter(None, [_message(channel)])), "message")
        return json.loads(got[0]["data"])

    async def receipt(self, response: httpx.Response) -> dict[str, Any]:
        key = redis_keys.receipt_key(response.headers["x-request-id"])
        await self.until(lambda: self.published.client.exists(key), "receipt")
        return json.loads(self.published.client.get(key))


def _message(channel: redis.client.PubSub) -> Any:
    return channel.get_message(ignore_subscribe_messages=True, timeout=0)


@asynccontextmanager
async def running(
    redis_url: str, router_id: str = "router-1", spans: SpanSettings | None = None, indexes: Sequence[str] = ()
) -> AsyncIterator[tuple[Router, httpx.AsyncClient]]:
    """A router in this event loop, with a client."""
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    source = RedisSource(redis_url, router_id, url)
    source.pools.index_sockets = indexes
    router = Router(source, spans=spans)
    serving = HttpServer(router, grace_s=1)
    await serving.start([listener])
    try:
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            yield router, client
    finally:
        await serving.stop()


@pytest.fixture(autouse=True)
def promptly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop without delay: hundreds of routers write, read and are stopped here. None waits for more receipts, for
    requests in transit, for a read to end, or to write responses and use and announce its end.
    """
    monkeypatch.setattr(redis_source, "FLUSH_S", 0.02)
    monkeypatch.setattr(server, "LINGER_S", 0.01)
    monkeypatch.setattr(live_state, "LISTEN_S", 0.02)
    monkeypatch.setattr(peers, "BLOCK_MS", 20)
    monkeypatch.setattr(peers, "TELL_S", 0.05)
    monkeypatch.setattr(use_reports, "WRITE_S", 0.1)
    monkeypatch.setattr(response_directory, "WRITE_S", 0.02)
    monkeypatch.setattr(response_directory, "AGAIN_S", 0.1)


@pytest.fixture
def published(live_redis: redis.Redis) -> Published:
    return Published(live_redis)


@pytest.fixture
async def world(published: Published, redis_url: str) -> AsyncIterator[Callable[..., Any]]:
    """A function that starts a World, given one behaviour per engine and overrides of the policy."""
    async with AsyncExitStack() as stack:

        async def build(
            *behaviours: Behaviour | None,
            strategy: str = "round_robin",
            spans: SpanSettings | None = None,
            **overrides: object,
        ) -> World:
            engines = [await stack.enter_async_context(engine(behaviour)) for behaviour in behaviours]
            published.policy(strategy=strategy, **overrides)
            published.fleet(*(entry(f"demo-{i}", made.url) for i, made in enumerate(engines)))
            router, client = await stack.enter_async_context(running(redis_url, spans=spans))
            return World(router, client, engines, published)

        yield build
