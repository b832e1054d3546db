"""Signals that keep a split going or end it. Reads `weir:watch:<pool>` and `weir:stop:<pool>`, and writes the latter.
The remaining TTL of a watch on the server counts from before the request, so clocks are not compared.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import StopValue, WatchValue
from router.pool.pool import Pool
from router.sync.redis_link import FAILURES, RedisLink

log = logging.getLogger("weir.router")

COMMANDS = 3  # per pool
A_PERSON = "by a person"  # shown on the public /healthz in place of a person's reason


class SplitSignals:
    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._stops: dict[str, tuple[Pool, StopValue]] = {}  # unwritten stops by pool
        self._sending: set[asyncio.Task[None]] = set()
        self.bad: dict[str, str] = {}  # why a value is unreadable, by key
        self.unreadable = 0

    async def look(self, pools: Iterable[Pool]) -> None:
        """Read the signals for pools with a split."""
        await self.send_stops()
        split = [pool for pool in pools if pool.split is not None]
        if not split:
            return
        asked_at = time.perf_counter()
        async with self._link.client.pipeline(transaction=False) as pipe:
            for pool in split:
                pipe.get(redis_keys.stop_key(pool.name))
                pipe.get(redis_keys.watch_key(pool.name))
                pipe.pttl(redis_keys.watch_key(pool.name))
            answers = await pipe.execute()
        for place, pool in enumerate(split):
            self._take(pool, answers[COMMANDS * place : COMMANDS * (place + 1)], asked_at)

    def _take(self, pool: Pool, answers: Sequence[Any], asked_at: float) -> None:
        stop = self._read(StopValue, redis_keys.stop_key(pool.name), answers[0])
        watch = self._read(WatchValue, redis_keys.watch_key(pool.name), answers[1])
        split, ttl_ms = pool.split, answers[2]
        if split is None:
            return
        if stop is not None and split.stopped(stop.delivery, A_PERSON if stop.by == "person" else stop.why):
            log.warning("pool %s: delivery %d was stopped: %s", pool.name, split.rollout.delivery, stop.why)
            pool.queue.wake_all()
        if watch is not None:
            ttl_s = ttl_ms / 1000 if ttl_ms >= 0 else redis_keys.WATCH_TTL_S * (ttl_ms == -1)
            split.watched(watch.delivery, asked_at + ttl_s, time.perf_counter())

    def _read(self, kind: type[codec.Value], key: str, raw: bytes | None) -> codec.Value | None:
        try:
            value = None if raw is None else codec.read(kind, raw)
        except codec.Unreadable as error:
            self.unreadable += 1
            self.bad[key] = f"{key}: {error}"
            return None
        self.bad.pop(key, None)
        return value

    def tripped(self, pool: Pool, why: str, request_id: str) -> None:
        """Inform the other routers immediately that the candidate could not decide the request."""
        delivery = pool.split.rollout.delivery if pool.split is not None else 0
        stop = StopValue(delivery=delivery, why=why, by="router", request=request_id, at=time.time())
        self._stops[pool.name] = pool, stop
        task = asyncio.get_running_loop().create_task(self._send_now())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_now(self) -> None:
        try:
            await self.send_stops()
        except FAILURES as error:  # the next `look` sends them
            self._link.failed(error)

    async def send_stops(self) -> None:
        for name, unsent in list(self._stops.items()):
            pool, stop = unsent
            if pool.split is not None and pool.split.rollout.delivery == stop.delivery:
                await self._send(redis_keys.stop_key(name), stop)
            # it would overwrite a stop of a newer delivery
            if self._stops.get(name) is unsent:
                del self._stops[name]

    async def _send(self, key: str, stop: StopValue) -> None:
        async with self._link.client.pipeline(transaction=False) as pipe:
            pipe.set(key, codec.encode(stop), ex=redis_keys.STOP_TTL_S)
            pipe.publish(redis_keys.CHANGED, key)
            await pipe.execute()
