"""The feeds of a process: one task each, one ZMQ context for all."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from functools import partial

import zmq

from router.kv_events.feed import Feed
from router.kv_events.sources import RankPlace, discover
from router.kv_events.turns import SharedTurns
from router.prefix.exact.index import ExactIndex

SWEPT_BLOCKS = 1_000  # blocks per step, which takes some milliseconds
SWEEP_PAUSE_S = 0.01


class Feeds:
    """The feeds of a process. ZMQ's socket limit is raised: each feed takes six sockets, so the default of 1,023
    suffices for only 170 engines."""

    def __init__(self, turns: SharedTurns) -> None:
        self._turns = turns
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._tasks: dict[Feed, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Feed]:
        return iter(list(self._tasks))

    def __contains__(self, feed: object) -> bool:
        return feed in self._tasks

    def follow(
        self, instance: str, url: str, place: RankPlace, index: ExactIndex, *, shares: bool = False, chunk: int = 0
    ) -> Feed:
        """Follow an endpoint. For `shares` and `chunk` see Feed."""
        if self._context is None:
            self._context = zmq.Context()
            self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))
        where = partial(discover, url, place)
        feed = Feed(instance, where, index, self._context, self._turns, shares=shares, chunk=chunk)
        self._tasks[feed] = asyncio.create_task(feed.run())
        return feed

    async def end(self, feed: Feed) -> None:
        task = self._tasks.pop(feed)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def close(self) -> None:
        for feed in self:
            await self.end(feed)
        if self._context is not None:
            self._context.term()
            self._context = None


async def sweep(index: ExactIndex) -> None:
    """Remove dropped blocks in small steps, and expired unreported blocks of stores."""
    index.expire(time.monotonic())
    while True:
        if not index.sweep(SWEPT_BLOCKS):
            return
        await asyncio.sleep(SWEEP_PAUSE_S)
