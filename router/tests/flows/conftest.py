"""Fixtures: a router in front of real simulated engines that transfer KV to one another."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import httpx
import pytest

from router.app import Router
from router.contract.redis import redis_keys
from router.tests.conftest import Published, entry, running
from router.tests.engine import Behaviour, Engine, engine
from router.tests.forked import ENGINE, Forked

PROMPT = "the quick brown fox " * 400  # 2,000 tokens: heavy under the policy below
PER_TOKEN = 131_072  # bytes of KV


class Sim:
    """A simulated engine as a process."""

    def __init__(self, name: str, port: int = 0, module: str = ENGINE, **flags: object) -> None:
        self.name = name
        given = {"port": port, "model": "llama", "time_scale": 100, "seed": 1} if module == ENGINE else {}
        words = [f"--{key.replace('_', '-')}={value}" for key, value in ({"port": port} | given | flags).items()]
        self.process = Forked(module, words)
        line = self.process.stdout.readline()
        assert line, "the engine did not start"
        self.address = line.split()[-1]
        self.url = f"http://{self.address}"
        self.port = int(self.address.rpartition(":")[2])

    def figure(self, name: str) -> float:
        """Return the sum of a metric in /metrics."""
        page = httpx.get(self.url + "/metrics").text
        lines = [line for line in page.splitlines() if line.startswith(f"vllm:{name}") and not line.startswith("#")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def external(self) -> float:
        return self.figure('prompt_tokens_by_source_total{model_name="llama",engine="0",source="external_kv_transfer"')

    def suspend(self) -> None:
        os.kill(self.process.pid, 19)  # SIGSTOP

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Pair:
    """A router and its engines `demo-0`, `demo-1`, …; it offloads prompts as long as `PROMPT`."""

    def __init__(self, router: Router, client: httpx.AsyncClient, sims: list[Sim], published: Published) -> None:
        self.router = router
        self.client = client
        self.sims = sims
        self.published = published
        self.entries: list[dict[str, Any]] = []

    @property
    def pool(self) -> Any:
        return self.router.pools.get("demo")

    async def ask(self, prompt: str = PROMPT, path: str = "/v1/completions", **body: Any) -> httpx.Response:
        asked = {"model": "llama", "prompt": prompt, "max_tokens": 20, "ignore_eos": True, **body}
        return await self.client.post(path, json={name: value for name, value in asked.items() if value is not None})

    async def receipt(self, response: httpx.Response) -> dict[str, Any]:
        key = redis_keys.receipt_key(response.headers["x-request-id"])
        await self.until(lambda: self.published.client.exists(key))
        return dict(json.loads(self.published.client.get(key)))

    async def until(self, true: Callable[[], Any]) -> None:
        end = time.monotonic() + 30
        while not true():
            assert time.monotonic() < end
            await asyncio.sleep(0.02)

    async def nothing_is_left(self) -> None:
        """Check that no load is counted, no blocks are in use and no breaker has a probe in flight."""
        endpoints = list(self.pool.endpoints.values())
        await self.until(lambda: all(not (m.requests or m.prefill_tokens or m.decodes or m.pulls) for m in endpoints))
        alive = [sim for sim in self.sims if sim.process.poll() is None]
        await self.until(lambda: all(sim.figure("kv_cache_usage_perc") == 0 for sim in alive))

    def publish(self, *, epoch: int = 1, **changes: dict[str, Any]) -> None:
        entries = [{**one, **changes.get(one["id"].replace("-", "_"), {})} for one in self.entries]
        self.published.fleet(*entries)

    def counted(self) -> dict[tuple[str, str, str], int]:
        return dict(self.router.recorder.offloads)


Build = Callable[..., Awaitable[Pair]]


@pytest.fixture
def sims() -> Iterator[Callable[..., Sim]]:
    with ExitStack() as stack:

        def start(name: str, **flags: Any) -> Sim:
            made = Sim(name, **flags)
            stack.callback(made.stop)
            return made

        yield start


@pytest.fixture
async def pair(published: Published, redis_url: str, sims: Callable[..., Sim]) -> AsyncIterator[Build]:
    """Start a `Pair`, given a connector, the engines' roles, their flags and overrides of the policy."""
    async with AsyncExitStack() as stack:

        async def build(
            kv: str,
            roles: tuple[str, ...] = ("prefill", "both"),
            flags: dict[str, Any] | None = None,
            **overrides: object,
        ) -> Pair:
            made = [sims(f"demo-{i}", kv=kv, role=role, **(flags or {})) for i, role in enumerate(roles)]
            published.policy(
                strategy="adaptive_v1",
                **{"flow__heavy": "offload", "classes__heavy_new_tokens": 1000, "classes__warm_new_tokens": 100}
                | overrides,
            )
            router, client = await stack.enter_async_context(running(redis_url))
            pair = Pair(router, client, made, published)
            pair.entries = [
                entry(
                    sim.name,
                    sim.url,
                    role=role,
                    connector=kv,
                    kv={"bytes_per_token": PER_TOKEN, "bootstrap": sim.url},
                )
                for sim, role in zip(made, roles, strict=True)
            ]
            pair.publish()
            await pair.until(lambda: pair.pool is not None and pair.pool.endpoints and pair.pool.version)
            return pair

        yield build


class Servers:
    """Fake prefill and decode servers behind a router."""

    def __init__(self, world: Pair, context: list[Engine], generation: list[Engine]) -> None:
        self.world = world
        self.context = context
        self.generation = generation


@pytest.fixture
async def servers(published: Published, redis_url: str) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def build(
            context: list[Behaviour],
            generation: list[Behaviour],
            connector: str = "trtllm",
            **overrides: object,
        ) -> Servers:
            made = [
                [await stack.enter_async_context(engine(behaviour)) for behaviour in half]
                for half in (context, generation)
            ]
            published.policy(
                strategy="adaptive_v1",
                **{"flow__heavy": "offload", "classes__heavy_new_tokens": 1000, "classes__warm_new_tokens": 100}
                | overrides,
            )
            router, client = await stack.enter_async_context(running(redis_url))
            world = Pair(router, client, [], published)
            world.entries = [
                entry(f"{role}-{i}", one.url, role=role, connector=connector, kv={"bootstrap": one.url})
                for role, half in zip(("prefill", "decode"), made, strict=True)
                for i, one in enumerate(half)
            ]
            world.publish()
            await world.until(lambda: world.pool is not None and world.pool.endpoints and world.pool.version)
            return Servers(world, *made)

        yield build
