"""Starts simulated engines as real processes and feeds one engine's events into an index."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import zmq

from router.kv_events import feed as feeds
from router.kv_events.feed import Feed
from router.kv_events.sources import KvEventSource, discover
from router.prefix.blocks import block_hashes
from router.prefix.exact.index import ExactIndex
from router.tests.forked import ENGINE, Forked

SEED = 5
SIZE = 16


class Sim:
    def __init__(self, **flags: object) -> None:
        given = {"port": 0, "model": "llama", "time-scale": 100, "events-port": 0, "replay-port": 0, **flags}
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        self.process = Forked(ENGINE, words)
        line = self.process.stdout.readline()
        self.port = int(line.rpartition(":")[2])
        self.url = f"http://127.0.0.1:{self.port}"

    async def ask(self, prompt: str, path: str = "/v1/completions", **fields: object) -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=self.url, timeout=30) as client:
            body = {"model": "llama", "prompt": prompt, "max_tokens": 1, "ignore_eos": True, **fields}
            answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def start_sim() -> Iterator[Callable[..., Sim]]:
    started: list[Sim] = []

    def start(**flags: object) -> Sim:
        started.append(Sim(**flags))
        return started[-1]

    yield start
    for sim in started:
        sim.kill()


@pytest.fixture
def sim(start_sim: Callable[..., Sim]) -> Sim:
    return start_sim()


class Followed:
    """A feed and the index that it fills."""

    def __init__(self, feed: Feed, index: ExactIndex) -> None:
        self.feed = feed
        self.index = index

    def held(self, prompt: str) -> int:
        """Return the held tokens, on any tier."""
        found = self.index.match(block_hashes(prompt.encode(), SIZE, SEED), SIZE)
        return sum(found.get("a", ()))

    async def until(self, true: Callable[[], Any]) -> None:
        async with asyncio.timeout(40):
            while not true():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def following(url: str, source: KvEventSource | None = None) -> AsyncIterator[Followed]:
    """Follow an engine's events; `source`, if given, is used in place of the source that the engine reports."""

    async def given() -> KvEventSource:
        assert source is not None
        return source

    index = ExactIndex(SEED)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    feed = Feed("a", given if source is not None else partial(discover, url), index, context)
    task = asyncio.create_task(feed.run())
    try:
        yield Followed(feed, index)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        context.term()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feed that polls often but tolerates a busy machine."""
    times = {
        "CONFIRM_S": 0.2,
        "RETRY_S": 0.1,
        "LONGEST_RETRY_S": 0.2,
        "ANSWER_S": 60,
        "KV_EVENTS_STALE_S": 60,
        "BEHIND_S": 60,
    }
    for name, value in times.items():
        monkeypatch.setattr(feeds, name, value)
