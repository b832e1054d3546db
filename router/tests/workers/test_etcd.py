"""Workers in a real etcd, under leases."""

import asyncio
import base64
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.tests.conftest import Published, entry, running
from router.tests.flows.conftest import PROMPT, Sim
from router.tests.ports import free_port

pytestmark = pytest.mark.slow


class Etcd:
    def __init__(self, folder: Path) -> None:
        program = shutil.which("etcd")
        assert program, "this test needs etcd: apt-get install etcd-server"
        self.folder = folder
        self.url, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.command = [
            *(program, "--data-dir", str(folder / "data")),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        ]
        self.start()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        end = time.monotonic() + 30
        while True:
            try:
                self.post("/v3/kv/range", key=coded("x"))
                return
            except httpx.HTTPError:
                assert time.monotonic() < end, (self.folder / "log").read_text()
                time.sleep(0.05)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = httpx.post(self.url + path, json=body, timeout=5)
        answer.raise_for_status()
        return dict(answer.json())

    def register(self, role: str, address: str, ttl_s: int = 60) -> str:
        """Register a worker; return its lease."""
        lease = str(self.post("/v3/lease/grant", TTL=ttl_s)["ID"])
        host, _, port = address.rpartition(":")
        self.post("/v3/kv/put", key=coded(f"/workers/{role}/{host}/{port}"), value=coded("{}"), lease=lease)
        return lease

    def revoke(self, lease: str) -> None:
        self.post("/v3/lease/revoke", ID=lease)


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    made = Etcd(tmp_path)
    yield made
    made.stop()


class World:
    def __init__(self, pool: Callable[[], Any], client: httpx.AsyncClient) -> None:
        self._pool = pool
        self.client = client

    @property
    def endpoints(self) -> dict[str, Any]:
        pool = self._pool()
        return dict(pool.endpoints) if pool is not None else {}

    async def until(self, true: Callable[[], Any]) -> None:
        end = time.monotonic() + 30
        while not true():
            assert time.monotonic() < end, list(self.endpoints)
            await asyncio.sleep(0.02)

    async def degraded(self) -> str:
        return " ".join((await self.client.get("/healthz")).json()["degraded"])


@pytest.fixture
async def world(etcd: Etcd, published: Published, redis_url: str) -> AsyncIterator[World]:
    """Build a pool with one instance of the fleet, and an etcd."""
    published.policy()
    kv = {"etcd": etcd.url}
    published.fleet(entry("n-0", "http://127.0.0.1:1", connector="neuron", role="prefill", kv=kv))
    etcd.register("prefill", "127.0.0.1:1")
    async with running(redis_url) as (router, client):
        made = World(lambda: router.pools.get("demo"), client)
        await made.until(lambda: made.endpoints)
        yield made


async def test_workers_join_with_their_key_and_leave_with_their_lease(world: World, etcd: Etcd) -> None:
    lease = etcd.register("decode", "127.0.0.1:2")
    await world.until(lambda: "decode-127.0.0.1:2" in world.endpoints)
    assert world.endpoints["decode-127.0.0.1:2"].role == "decode"
    etcd.revoke(lease)
    await world.until(lambda: "decode-127.0.0.1:2" not in world.endpoints)
    assert world.endpoints["n-0"].routable


async def test_a_lease_that_expires_removes_its_worker(world: World, etcd: Etcd) -> None:
    etcd.register("decode", "127.0.0.1:2", ttl_s=1)
    await world.until(lambda: "decode-127.0.0.1:2" in world.endpoints)
    await world.until(lambda: "decode-127.0.0.1:2" not in world.endpoints)


async def test_a_worker_that_registers_again_counts_as_a_new_one(world: World, etcd: Etcd) -> None:
    lease = etcd.register("decode", "127.0.0.1:2")
    await world.until(lambda: "decode-127.0.0.1:2" in world.endpoints)
    before = world.endpoints["decode-127.0.0.1:2"].epoch
    etcd.revoke(lease)
    etcd.register("decode", "127.0.0.1:2")
    await world.until(
        lambda: "decode-127.0.0.1:2" in world.endpoints and world.endpoints["decode-127.0.0.1:2"].epoch > before
    )


async def test_an_instance_of_the_fleet_that_is_not_registered_gets_nothing(
    world: World, etcd: Etcd, published: Published
) -> None:
    kv = {"etcd": etcd.url}
    published.fleet(
        entry("n-0", "http://127.0.0.1:1", connector="neuron", kv=kv),
        entry("n-1", "http://127.0.0.1:9", connector="neuron", kv=kv),
    )
    await world.until(lambda: "n-1" in world.endpoints and not world.endpoints["n-1"].routable)
    assert world.endpoints["n-1"].reason == "it is not registered in etcd"
    assert world.endpoints["n-0"].routable


async def test_the_last_known_workers_remain_while_etcd_is_unreachable(world: World, etcd: Etcd) -> None:
    etcd.register("decode", "127.0.0.1:2")
    await world.until(lambda: "decode-127.0.0.1:2" in world.endpoints)
    etcd.stop()
    end = time.monotonic() + 30
    while "etcd at" not in await world.degraded():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    assert "the last known workers are kept" in await world.degraded()
    assert world.endpoints["decode-127.0.0.1:2"].routable
    etcd.start()
    while "etcd at" in await world.degraded():
        assert time.monotonic() < end + 30
        await asyncio.sleep(0.05)


async def test_simulated_workers_register_serve_and_leave(world: World, etcd: Etcd, published: Published) -> None:
    """A killed worker disappears when its lease ends; a stopped one revokes its lease."""
    published.policy(strategy="round_robin_pd")
    sims = {role: Sim(role, kv="neuron", role=role, etcd=etcd.url) for role in ("prefill", "decode")}
    names = {role: f"{role}-{sim.address}" for role, sim in sims.items()}
    try:
        await world.until(lambda: set(names.values()) <= set(world.endpoints))
        body = {"model": "llama", "prompt": PROMPT, "max_tokens": 5}
        answer = await world.client.post("/v1/completions", json=body)
        assert answer.status_code == 200
        assert answer.headers["x-weir-instance"] == names["decode"]
        assert sims["decode"].external() == 2000
        sims["prefill"].process.terminate()
        await world.until(lambda: names["prefill"] not in world.endpoints)
        sims["decode"].process.kill()
        await world.until(lambda: names["decode"] not in world.endpoints)
    finally:
        for sim in sims.values():
            sim.stop()
