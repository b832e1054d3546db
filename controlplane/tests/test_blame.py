"""Two routers on one Redis let no client, and no batch, harm others by requests that fail on every engine."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
import redis

from controlplane.traffic.batches import running as batches
from controlplane.traffic.batches.lines import meaning
from controlplane.traffic.batches.tests.test_batches import Caller, alice, router, run  # noqa: F401  (fixtures)
from controlplane.traffic.batches.tests.test_lines import CHAT, line
from controlplane.traffic.keys.publishing import valid_keys
from router.app import Router
from router.contract.redis import redis_keys
from router.contract.redis.codec import encode
from router.tests.conftest import Published, entry, promptly, running  # noqa: F401  (fixture)
from router.tests.engine import Behaviour, Engine, Received, Writer, engine, hang_up, reply

DEAD = reply({"error": {"message": "EngineCore is dead", "code": 500}}, 500)
FULL = reply({"error": {"message": "full"}}, 503)
POISON, GOOD = ({"model": "llama", "messages": [{"role": "user", "content": said}]} for said in ("poison", "hello"))
DOORS = ("routers", "batch")


def poisoned(failing: Behaviour) -> Behaviour:
    """Return an engine that fails only on poison."""
    good = reply()

    async def behave(engine: Engine, request: Received, writer: Writer) -> None:
        await (failing if b"poison" in request.body else good)(engine, request, writer)

    return behave


class Stage:
    """Two routers with a Redis, and engines, in one event loop."""

    def __init__(self, redis_url: str, published: Published) -> None:
        self._url, self._published, self._stack = redis_url, published, AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.engines: list[Engine] = []
        self.routers: list[Router] = []
        self.urls: list[str] = []

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def start(self, *behaviours: Behaviour, **policy: object) -> None:
        self.wait(self._start(behaviours, policy))

    async def _start(self, behaviours: tuple[Behaviour, ...], policy: dict[str, object]) -> None:
        self.engines = [await self._stack.enter_async_context(engine(behaviour)) for behaviour in behaviours]
        self._published.policy(**policy)  # type: ignore[arg-type]
        self._published.fleet(*(entry(f"demo-{number}", one.url) for number, one in enumerate(self.engines)))
        for name in ("router-1", "router-2"):
            made, client = await self._stack.enter_async_context(running(self._url, name))
            self.routers.append(made)
            self.urls.append(str(client.base_url))
        for made in self.routers:
            while not ((pool := made.pools.get("demo")) and pool.ready and made.pools.auth.ring):
                await asyncio.sleep(0.01)

    def stop(self) -> None:
        self.wait(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open_breakers(self) -> list[int]:
        """Return the number of instances that each router shut out."""
        endpoints = [list(pool.endpoints.values()) for made in self.routers if (pool := made.pools.get("demo"))]
        return [sum(one.breaker.opened_at is not None for one in pool) for pool in endpoints]

    def poison_received(self) -> int:
        return sum(b"poison" in request.body for one in self.engines for request in one.received)

    def served(self, caller: Caller, count: int = 12) -> list[int]:
        """Return the statuses of good requests, by turns at both routers."""
        turns = itertools.islice(itertools.cycle(self.urls), count)
        return [ask(url, caller, GOOD).status_code for url in turns]


def ask(url: str, caller: Caller, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(url + CHAT, json=body, headers={"authorization": f"Bearer {caller.secret}"}, timeout=20)


Staged = Callable[..., Stage]


@pytest.fixture
def mallory(alice: Caller) -> Caller:  # noqa: F811
    return Caller("mallory")


@pytest.fixture
def stage(
    router: object,  # noqa: F811
    mallory: Caller,
    redis_url: str,
    live_redis: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Staged]:
    live_redis.set(redis_keys.API_KEYS, encode(valid_keys()))
    made = Stage(redis_url, Published(live_redis))
    monkeypatch.setattr(batches, "router_urls", lambda: made.urls)

    def start(*behaviours: Behaviour, **policy: object) -> Stage:
        made.start(*behaviours, **policy)
        return made

    yield start
    made.stop()


def poison(staged: Stage, door: str, caller: Caller, count: int) -> list[str]:
    """Send poison through both routers, or in a batch; return the lines' outcomes as batches judge them."""
    if door == "routers":
        turns = itertools.islice(itertools.cycle(staged.urls), count)
        return [meaning(batches.answer_of(ask(url, caller, POISON), "r"), CHAT).outcome for url in turns]
    name = caller.batch(*(line(str(number), body=POISON) for number in range(count)))
    run(name)
    counts = caller.get(f"/v1/batches/{name}")["request_counts"]
    return ["answered"] * counts["completed"] + ["failed"] * counts["failed"]


@pytest.mark.parametrize("door", DOORS)
def test_a_request_that_fails_alike_reaches_two_engines_and_shuts_none_out(
    stage: Staged,
    alice: Caller,  # noqa: F811
    mallory: Caller,
    door: str,
) -> None:
    staged = stage(*[poisoned(DEAD)] * 4, failure__breaker_failures=1, failure__breaker_open_s=60.0)
    assert poison(staged, door, mallory, 4) == ["failed"] * 4
    assert staged.poison_received() == 8
    assert staged.open_breakers() == [0, 0]
    assert staged.served(alice) == [200] * 12


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("then", [hang_up, DEAD, FULL], ids=["another dies", "another fails", "another is full"])
def test_a_request_whose_engine_died_is_computed_by_one_more_engine(
    stage: Staged,
    alice: Caller,  # noqa: F811
    mallory: Caller,
    door: str,
    then: Behaviour,
) -> None:
    turns = itertools.cycle((hang_up, then))

    async def in_turn(engine: Engine, request: Received, writer: Writer) -> None:
        await next(turns)(engine, request, writer)

    staged = stage(*[poisoned(in_turn)] * 4, failure__breaker_failures=5, failure__retries=3)
    assert poison(staged, door, mallory, 1) == ["failed"]
    assert staged.poison_received() == 2 + (then is FULL), "an instance that refuses it has not computed it"
    assert staged.open_breakers() == [0, 0]
    assert staged.served(alice) == [200] * 12


@pytest.mark.parametrize(("door", "engines"), [("routers", 1), ("batch", 2)])
def test_a_client_opens_the_last_breaker_of_neither_router(
    stage: Staged,
    alice: Caller,  # noqa: F811
    mallory: Caller,
    door: str,
    engines: int,
) -> None:
    staged = stage(*[poisoned(DEAD)] * engines, failure__breaker_failures=1, failure__breaker_open_s=60.0)
    outcomes = poison(staged, door, mallory, 24)
    assert "answered" not in outcomes
    assert staged.open_breakers() == [engines - 1] * 2, "each router shut one instance out, and not the last"
    assert staged.served(alice) == [200] * 12
