"""A router joins a shared port only once it can serve requests."""

import asyncio
from collections import Counter

import httpx
import pytest

from router.app import Router
from router.http.clients import ClientConnections
from router.http.server import HttpServer, listen
from router.serving import joining
from router.sync.redis_source import RedisSource
from router.tests.conftest import entry
from router.tests.engine import engine
from router.tests.ports import free_port


@pytest.fixture
async def start(redis_url):
    """Start a router with a name and a shared port; return it and its own URL."""
    ends = []

    async def begin(name, shared, url_of_redis=redis_url):
        own, other = listen("127.0.0.1", 0), listen("127.0.0.1", shared, shared=True)
        url = f"http://127.0.0.1:{own.getsockname()[1]}"
        clients = ClientConnections()
        router = Router(RedisSource(url_of_redis, name, url), clients)
        server = HttpServer(router, 0.1, clients)
        await server.start([own])
        ends.append((server, asyncio.create_task(joining.join(server, other, router.pools)), other))
        await asyncio.sleep(0)
        return router, url

    yield begin
    for server, task, other in ends:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop()
        other.close()


async def until(true):
    async with asyncio.timeout(20):
        while not await true():
            await asyncio.sleep(0.02)


async def is_served(url):
    try:
        async with httpx.AsyncClient() as client:
            await client.get(url + "/healthz")
    except httpx.TransportError:
        return False
    return True


async def test_a_router_without_a_fleet_does_not_join_the_port_and_reports_that(start, published):
    shared = free_port()
    _, own = await start("router-1", shared)
    async with httpx.AsyncClient() as client:
        health = (await client.get(own + "/healthz")).json()
        assert health["status"] == "degraded"
        assert "it does not listen on the shared port yet" in " ".join(health["degraded"])
        assert "no fleet has been read yet" in " ".join(health["degraded"])
        assert not await is_served(f"http://127.0.0.1:{shared}")
        async with engine() as made:
            published.policy()
            published.fleet(entry("demo-0", made.url))
            await until(lambda: is_served(f"http://127.0.0.1:{shared}"))
            health = (await client.get(own + "/healthz")).json()
            assert "shared port" not in " ".join(health["degraded"])
            assert "no fleet" not in " ".join(health["degraded"])


ASKED = 344


async def test_no_request_on_a_shared_port_reaches_a_router_that_knows_no_pool(start, published):
    shared = free_port()
    published.policy()
    async with engine() as made, httpx.AsyncClient(base_url=f"http://127.0.0.1:{shared}") as client:
        published.fleet(entry("demo-0", made.url))
        await start("router-1", shared)
        await until(lambda: is_served(f"http://127.0.0.1:{shared}"))
        other, own = await start("router-2", shared, f"redis://127.0.0.1:{free_port()}/0")
        answers = Counter()
        for _ in range(ASKED):
            got = await client.post("/v1/completions", json={"prompt": "hi"}, headers={"connection": "close"})
            answers[got.status_code] += 1
        print(f"{answers[503]} of {ASKED} requests got 503")
        assert answers == {200: ASKED}
        assert not other.pools.known
        assert (await client.get(own + "/healthz")).json()["status"] == "degraded"


@pytest.mark.slow
async def test_the_first_router_of_a_port_joins_without_a_fleet_and_the_next_one_waits(start, monkeypatch):
    monkeypatch.setattr(joining, "ALONE_S", 0.3)
    shared = free_port()
    first, _ = await start("router-1", shared)
    await until(lambda: is_served(f"http://127.0.0.1:{shared}"))
    second, own = await start("router-2", shared)
    await asyncio.sleep(1)
    async with httpx.AsyncClient() as client:
        health = (await client.get(own + "/healthz")).json()
        assert "it does not listen on the shared port yet" in " ".join(health["degraded"])
        for _ in range(10):
            answer = await client.get(f"http://127.0.0.1:{shared}/healthz", headers={"connection": "close"})
            assert answer.json()["id"] == "router-1"
    assert not first.pools.known
    assert not second.pools.known


async def test_a_fleet_without_a_ready_instance_is_enough_to_join(start, published):
    published.policy()
    published.fleet()
    shared = free_port()
    await start("router-1", shared)
    await until(lambda: is_served(f"http://127.0.0.1:{shared}"))
