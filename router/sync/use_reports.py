"""Writes the use by API keys to Redis, always as a whole, and drops hours that the database has confirmed."""

import time
from typing import Any

from router.contract.redis import codec, redis_keys
from router.contract.redis.use import UseHour
from router.sync.redis_link import RedisLink
from router.telemetry.use import UseCounter

WRITE_S = 1.0
MANY_ROWS = 500  # number of rows that takes milliseconds to write
MANY_S = 5.0  # interval between writes of so many rows


class UseReports:
    def __init__(self, router_id: str, life: str, link: RedisLink, counter: UseCounter) -> None:
        self._name = f"{router_id}.{life}"
        self._key = redis_keys.use_key(self._name)
        self._kept_key = redis_keys.use_kept_key(self._name)
        self._link = link
        self._counter = counter
        self._wrote_at = 0.0  # s, Unix

    async def write(self, *, last: bool = False) -> None:
        """Write the use, every WRITE_S and when the router stops."""
        now = time.time()
        if not last and self._counter.rows > MANY_ROWS and abs(now - self._wrote_at) < MANY_S:
            return
        self._wrote_at = now
        counter, client = self._counter, self._link.client
        values = counter.take(now)
        try:
            await self._write(values, now)
        except BaseException:
            counter.failed(values)
            raise
        hours = counter.hours
        if not hours:
            return
        kept: list[Any] = await client.hmget(self._kept_key, [str(hour) for hour in hours])
        confirmed = {hour: int(raw) for hour, raw in zip(hours, kept, strict=True) if raw and raw.isdigit()}
        done = counter.confirmed(confirmed, now)
        if done:
            await client.hdel(self._key, *map(str, done))
        elif len(hours) > await client.hlen(self._key):
            counter.again()

    async def _write(self, values: list[UseHour], now: float) -> None:
        if not values:
            return
        async with self._link.client.pipeline(transaction=False) as pipe:
            pipe.hset(self._key, mapping={str(value.hour): codec.encode(value) for value in values})
            pipe.expire(self._key, redis_keys.USE_TTL_S)
            pipe.zadd(redis_keys.USE, {self._name: now})
            await pipe.execute()
