"""Writes this router's delivery tallies to Redis, always as a whole, so that a repeated write counts once."""

import asyncio
import time

from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import Arm, CellTally, DeliveryTally
from router.pool.pool import Pool
from router.serving.pools import Pools
from router.sync.redis_link import FAILURES, RedisLink
from router.telemetry.delivery_tallies import DeliveryTallies
from router.telemetry.recorder import Recorder
from router.telemetry.shadow import ShadowDecider

WRITE_S = 5.0


class DeliveryReports:
    def __init__(
        self, router_id: str, life: str, link: RedisLink, pools: Pools, recorder: Recorder, shadow: ShadowDecider
    ) -> None:
        self._id = router_id
        self._life = life
        self._link = link
        self._pools = pools
        self._recorder = recorder
        self._shadow = shadow
        self._kept: dict[str, set[tuple[int, int]]] = {}  # deliveries and generations with a field, by pool

    async def write(self) -> None:
        """Write the tallies, every WRITE_S and when the router stops."""
        for pool in list(self._pools.all()):
            generations = self._recorder.generations(pool)
            for tallies in generations:
                tallies.look(time.perf_counter())
                # Writing the newest tallies shows that this router is alive
                if tallies.unwritten or tallies is generations[0]:
                    await self._write(pool, tallies)
            await self._forget(pool, {tallies.identity for tallies in generations})

    async def _forget(self, pool: Pool, kept: set[tuple[int, int]]) -> None:
        """Delete fields of closed generations; fields of an ended delivery expire with their key."""
        for delivery, generation in self._kept.get(pool.name, set()) - kept:
            if kept:
                field = redis_keys.delivery_field(pool.name, self._id, self._life, generation)
                await self._link.client.hdel(redis_keys.delivery_key(delivery), field)
        self._kept[pool.name] = kept

    async def _write(self, pool: Pool, tallies: DeliveryTallies) -> None:
        delivery, generation = tallies.identity
        tallies.unwritten = False
        cells = await self._cells(tallies)
        tallies.written += 1
        value = DeliveryTally(
            delivery=delivery,
            generation=generation,
            pool=pool.name,
            router=self._id,
            life=self._life,
            at=time.time(),
            written=tallies.written,
            cells=cells,
            shadow=tallies.shadow.read(self._shadow.sample(tallies.split.rollout)),
        )
        key = redis_keys.delivery_key(delivery)
        field = redis_keys.delivery_field(pool.name, self._id, self._life, generation)
        try:
            async with self._link.client.pipeline(transaction=False) as pipe:
                pipe.hset(key, field, codec.encode(value))
                pipe.expire(key, redis_keys.DELIVERY_TTL_S)
                await pipe.execute()
        except FAILURES:
            tallies.unwritten = True
            raise

    @staticmethod
    async def _cells(tallies: DeliveryTallies) -> dict[Arm, dict[str, dict[int, CellTally]]]:
        """Yield the tallies of one arm and class at a time, because writing all at once would delay requests for
        milliseconds."""
        cells: dict[Arm, dict[str, dict[int, CellTally]]] = {}
        for arm, name in tallies.requests():
            cells.setdefault(arm, {})[name] = tallies.read(arm, name)
            await asyncio.sleep(0)
        return cells
