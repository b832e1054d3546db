"""Session bindings in Redis, written by other routers and by this router before its restart.
The bindings of a pool are loaded once, when the pool is new to this router. Later bindings come only from other
routers, so a single router looks up nothing: a look-up takes longer than a whole decision.
"""

import asyncio
import time
from typing import cast

from router.contract.redis import redis_keys
from router.pool.affinity import Bound
from router.pool.endpoint import Endpoint
from router.pool.pool import Pool
from router.request.call import Call
from router.serving.pools import Pools
from router.sync.peers import RouterPeers
from router.sync.redis_link import FAILURES, RedisLink

LOOK_UP_S = 0.1  # a slow Redis may cost a session its cache, but must not delay requests
AT_ONCE = 1_000  # keys
TAKE_UP_S = 1.0  # interval of checking for new pools
RECHECK_S = 5.0  # age of a binding after which another router may have moved it


class SessionDirectory:
    def __init__(self, link: RedisLink, pools: Pools, peers: RouterPeers) -> None:
        self._link = link
        self._pools = pools
        self._peers = peers
        self._taken_up: set[Pool] = set()

    def must_look_up(self, call: Call, bound: Bound | None) -> bool:
        return call.request.session is not None and self._link.up and self._may_know_more(call, bound)

    def _may_know_more(self, call: Call, bound: Bound | None) -> bool:
        if not len(self._peers):
            return bound is None and call.pool not in self._taken_up
        return bound is None or call.at - bound.used_at > RECHECK_S

    async def take_up(self) -> None:
        """Load the bindings of new pools, every TAKE_UP_S."""
        pools = list(self._pools.all())
        self._taken_up.intersection_update(pools)
        for pool in pools:
            if pool not in self._taken_up:
                await self._take_up(pool)
                self._taken_up.add(pool)

    async def _take_up(self, pool: Pool) -> None:
        prefix = redis_keys.affinity_key(pool.name, "")
        cursor = -1
        while cursor:
            cursor, keys = await self._link.client.scan(max(cursor, 0), match=f"{prefix}*", count=AT_ONCE)
            sessions = [str(key, "utf-8", "replace").removeprefix(prefix) for key in cast(list[bytes], keys)]
            instances = await self._link.mget([redis_keys.affinity_key(pool.name, session) for session in sessions])
            for session, instance in zip(sessions, instances, strict=True):
                if instance is not None:
                    pool.affinity.taken_up(session, instance, time.time())

    def sent(self, call: Call, endpoint: Endpoint) -> None:
        self._peers.sent(call, endpoint)

    async def look_up(self, call: Call) -> str | None:
        """Return the instance recorded for the session by another router."""
        try:
            async with asyncio.timeout(LOOK_UP_S):
                return await self._link.get(redis_keys.affinity_key(call.pool.name, call.session or ""))
        except TimeoutError:
            return None
        except FAILURES as error:
            self._link.failed(error)
            return None
