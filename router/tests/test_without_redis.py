"""If Redis dies, hangs or has not started, the router serves with the last known state."""

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from router.contract.redis import redis_keys
from router.tests.conftest import Published, World, entry, running
from router.tests.deliveries import put, rollout, watch
from router.tests.engine import engine


class OwnRedis:
    """A Redis server of this test, which can be killed, suspended and restarted at the same address."""

    def __init__(self, folder: Path, start: Callable[[Path], subprocess.Popen[bytes]]) -> None:
        self._start = start
        self.socket = folder / "r.sock"
        self.url = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = self._start(self.socket)

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @contextmanager
    def published(self):
        with redis.Redis.from_url(self.url) as client:
            yield Published(client)


@pytest.fixture
def own_redis(start_redis):
    with tempfile.TemporaryDirectory(prefix="weir-", dir="/tmp") as folder:
        own = OwnRedis(Path(folder), start_redis)
        yield own
        own.kill()


@pytest.fixture
async def served(own_redis):
    own_redis.start()
    async with engine() as made:
        with own_redis.published() as published:
            published.policy()
            published.fleet(entry("demo-0", made.url))
            async with running(own_redis.url) as (router, client):
                yield World(router, client, [made], published)


async def health(w):
    return (await w.client.get("/healthz")).json()


async def test_serving_continues_when_redis_dies_and_health_says_so(served, own_redis):
    own_redis.kill()
    await served.until(lambda: not served.router.source.link.up)
    for _ in range(3):
        response = await served.ask(headers={"x-session-id": "s"})
        assert (response.status_code, response.headers["x-weir-policy"]) == (200, "1")
    document = await health(served)
    assert (document["status"], document["redis"]) == ("degraded", False)
    assert "Redis has not answered" in document["degraded"][0]


async def test_serving_continues_when_redis_hangs(served, own_redis):
    own_redis.signal(signal.SIGSTOP)
    try:
        await served.until(lambda: not served.router.source.link.up)
        assert (await served.ask(headers={"x-session-id": "s"})).status_code == 200
    finally:
        own_redis.signal(signal.SIGCONT)
    await served.until(lambda: served.router.source.link.up)


async def test_receipts_recorded_meanwhile_are_written_once_redis_is_back(served, own_redis):
    own_redis.kill()
    await served.until(lambda: not served.router.source.link.up)
    await served.ask(headers={"x-request-id": "meanwhile"})
    own_redis.start()
    await served.until(lambda: served.published.client.exists(redis_keys.receipt_key("meanwhile")))


async def test_a_new_policy_is_applied_once_redis_is_back(served, own_redis):
    own_redis.kill()
    await served.until(lambda: not served.router.source.link.up)
    own_redis.start()
    version = served.published.policy(strategy="lpwl")
    await served.until(lambda: served.router.pools.get("demo").version == version)


async def test_the_subscription_is_restored_as_well(served, own_redis):
    own_redis.kill()
    own_redis.start()
    await served.until(lambda: served.published.client.pubsub_numsub(redis_keys.CHANGED)[0][1] == 1)


async def test_a_router_starts_without_redis_and_applies_values_once_it_is_there(own_redis):
    async with engine() as made, running(own_redis.url) as (router, client):
        w = World(router, client, [made], None)
        assert (await w.ask()).status_code == 503
        assert (await health(w))["status"] == "degraded"
        own_redis.start()
        with own_redis.published() as published:
            published.policy()
            published.fleet(entry("demo-0", made.url))
            await w.until(lambda: router.pools.get("demo") is not None and router.pools.get("demo").ready)
            assert (await w.ask()).status_code == 200


async def test_receipts_are_bounded_while_redis_is_unreachable(served, own_redis, monkeypatch):
    monkeypatch.setattr("router.telemetry.recorder.PENDING", 3)
    own_redis.kill()
    await served.until(lambda: not served.router.source.link.up)
    for _ in range(6):
        await served.ask()
    assert len(served.router.recorder.pending) <= 3
    assert served.router.recorder.lost >= 3
    await asyncio.sleep(0)


def splits(router):
    split = router.pools.get("demo").split
    return split.state(time.perf_counter()) if split is not None else ""


@pytest.mark.slow
async def test_without_redis_the_split_lasts_as_long_as_its_watch(own_redis):
    own_redis.start()
    async with engine() as made:
        with own_redis.published() as published:
            published.policy()
            published.fleet(entry("demo-0", made.url))
            async with running(own_redis.url) as (router, client):
                watch(published.client, 1.5)
                put(published.client, rollout(1, 1.0))
                while splits(router) != "on":
                    await asyncio.sleep(0.01)
                own_redis.kill()
                body = {"model": "llama", "prompt": "x"}
                answers = []
                end = time.perf_counter() + 2.0
                while time.perf_counter() < end:
                    answers.append((await client.post("/v1/completions", json=body)).headers["x-weir-policy"])
                    await asyncio.sleep(0.05)
                assert answers[0] == "44"
                assert answers[-1] == "42"
                assert sorted(answers, reverse=True) == answers  # the switch happens once and is not reverted
                assert splits(router) == "unwatched"
                assert "delivery 7 has not been watched" in " ".join(router.source.degraded())
