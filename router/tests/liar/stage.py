"""A real router with its server and Redis, shared by many machines; its clock advances only on request."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import redis

from router.app import Router
from router.contract.metrics.engine_metrics import VLLM_SCRAPE, parse_metrics
from router.contract.redis import codec, redis_keys
from router.contract.redis.budgets import period_of
from router.contract.redis.sample import sample_of
from router.http.server import HttpServer, listen
from router.pool.pool import Pool
from router.request.call import Call
from router.sync.redis_source import RedisSource
from router.telemetry import receipts
from router.tests.conftest import Published, entry, key_entry
from router.tests.engine import engine
from router.tests.liar import pages
from router.tests.liar.engines import Attempt, PlannedEngine
from router.tests.liar.oracle import Asked
from router.tests.liar.plans import GOOD, Plan

ENGINES = ("good-0", "good-1", "liar-0", "liar-1")
QUIET_SPINS = 10  # consecutive idle loop iterations; a message needs fewer from the socket to its effects
MOST_SPINS = 4000
QUIET = ("begin", "ping", "alive")  # events without a token
OF_A_PROBE = 3  # tokens of a probe


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose clock can be advanced."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


class Stage:
    def __init__(self, client: redis.Redis, url: str) -> None:
        self.published = Published(client)
        self._url = url
        self._clock = Clock()
        self._numbers = itertools.count(1)
        self._stack = AsyncExitStack()
        self.asked: dict[int, Asked] = {}
        self.engines: dict[str, PlannedEngine] = {}
        self.port = 0
        self.pool = ""
        self.keys: dict[str, str] = {}
        self.pages: dict[str, str] = {}  # page by engine; an engine without an entry has no page
        self.spent: Callable[[], int] | None = None  # tokens spent from bob's budget
        self._spent = 0

    def time(self) -> float:
        return self._clock.time()

    def run(self, awaitable: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await awaitable

        return self._clock.run_until_complete(awaited())

    async def open(self) -> None:
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.source = RedisSource(self._url, "router-1", f"http://127.0.0.1:{self.port}")
        self.router = Router(self.source)
        self.server = HttpServer(self.router, grace_s=1)
        for name in ENGINES:
            self.engines[name] = await self._stack.enter_async_context(engine(of=PlannedEngine))
            self.engines[name].name, self.engines[name].plan_of = name, self._plan_of
        await self.server.start([listener])
        recorder = self.router.recorder
        ended = recorder.ended
        recorder.ended = lambda call: (self._note(call), ended(call))[1]  # type: ignore[method-assign]

    async def close(self) -> None:
        await self.server.stop()
        await self._stack.aclose()

    def end(self) -> None:
        self.run(self.close())
        self._clock.close()

    def _note(self, call: Call) -> None:
        asked = self.asked.get(int(call.id.removeprefix("req-"))) if call.id[4:].isdigit() else None
        if asked is None:
            return
        asked.outcomes.append(receipts.receipt(call, "router-1"))
        if self.spent is not None and asked.key == "bob":
            before, self._spent = self._spent, self.spent()
            asked.charged = self._spent - before

    def _plan_of(self, name: str, number: int) -> tuple[Plan, list[Attempt]]:
        asked = self.asked[number]
        if not (asked.is_poison or name.startswith("liar")):
            return GOOD, asked.attempts
        others = {attempt.engine for attempt in asked.attempts if attempt.plan is not GOOD} - {name}
        return (asked.lie.then if others else None) or asked.lie, asked.attempts

    # One machine

    async def begin(
        self, names: list[str], keys: dict[str, dict[str, Any]], of_each: Mapping[str, dict[str, Any]], **policy: object
    ) -> None:
        """Begin with a new pool of these engines and new keys with these limits."""
        number = next(self._numbers)
        client, self.pool = self.published.client, f"demo-{number}"
        client.delete(redis_keys.POOLS)
        for kind in self.engines.values():
            kind.release = asyncio.Event()
            kind.answers_probes = True
        self.pages.clear()
        client.delete(*map(redis_keys.instance_key, self.engines))
        self.published.policy(self.pool, **policy)
        self.published.fleet(*(self._entry(name, of_each.get(name, {})) for name in names), pool=self.pool)
        self.keys = {name: f"sk-weir-{number}-{name}{number}" for name in keys}
        self.published.keys(*(key_entry(self.keys[name], **limits) for name, limits in keys.items()))
        for budget in (budget for limits in keys.values() for budget in limits.get("budgets", ())):
            period = period_of(budget["per"], time.time()).name
            client.hset(redis_keys.budget_key(budget["id"], period), mapping={"since": 0})
        await self.source.live.poll()
        self.here.turn = 0
        self._spent = 0

    def _entry(self, name: str, more: dict[str, Any]) -> dict[str, Any]:
        url = self.engines[name].url
        return entry(name, url, **{"kv": {"bootstrap": url}, **more} if more else {})

    @property
    def here(self) -> Pool:
        pool = self.router.pools.get(self.pool)
        assert pool is not None
        return pool

    async def settle(self, is_quiet: Callable[[], bool]) -> None:
        """Wait until nothing more happens without advancing the clock."""
        quiet = 0
        for spin in range(MOST_SPINS):
            await asyncio.sleep(0 if spin < 200 else 0.001)
            quiet = quiet + 1 if is_quiet() else 0
            if quiet == QUIET_SPINS:
                return
        raise AssertionError("requests neither end nor wait for an engine")

    async def pass_time(self, seconds: int, is_quiet: Callable[[], bool]) -> None:
        for _ in range(seconds):
            self._clock.ahead_s += 1.0
            self._read_pages()
            await self.settle(is_quiet)

    def _read_pages(self) -> None:
        """Write the values that the engines' nodes would write each second."""
        for name, page in self.pages.items():
            attempts = [one for asked in self.asked.values() for one in asked.attempts if one.engine == name]
            tokens = sum(kind not in QUIET for one in attempts for kind in one.sent)
            tokens += OF_A_PROBE * self.engines[name].probed
            text = pages.text(page, sum(one.is_held for one in attempts), tokens)
            if text is not None:
                read = parse_metrics(text, VLLM_SCRAPE)
                sample = sample_of(read, id=name, pool=self.pool, epoch=1, at=time.time())
                self.published.client.set(redis_keys.instance_key(name), codec.encode(sample))

    async def until(self, true: Callable[[], Any], what: str) -> None:
        for spin in range(MOST_SPINS):
            if true():
                return
            await asyncio.sleep(0 if spin < 200 else 0.001)
        raise AssertionError(what)


@contextmanager
def staged(client: redis.Redis, url: str) -> Iterator[Stage]:
    stage = Stage(client, url)
    stage.run(stage.open())
    try:
        yield stage
    finally:
        stage.end()
