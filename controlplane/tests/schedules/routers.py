"""A router without HTTP: the real state from Redis and the real reports, in its own event loop."""

import asyncio
from collections.abc import Awaitable, Callable

from router.pool.pool import Pool
from router.sync.redis_source import RedisSource

URL = "http://127.0.0.1:1"


class ScheduledRouter:
    """A router by name; `restart` begins a new incarnation that knows nothing."""

    def __init__(self, name: str, redis_url: str) -> None:
        self.name, self._redis_url = name, redis_url
        self._loop = asyncio.new_event_loop()
        self._client = None
        self.restart()

    def restart(self) -> None:
        self.source = RedisSource(self._redis_url, self.name, URL)
        if self._client is None:
            self._client = self.source.link.client
        self.source.link.client = self._client  # one for all incarnations: connecting takes longer than a schedule

    @property
    def pools(self) -> dict[str, Pool]:
        return {pool.name: pool for pool in self.source.pools.all()}

    def key_ids(self) -> frozenset[str] | None:
        """Return the ids of the API keys that the router knows; None if none were published to it."""
        ring = self.source.pools.auth.ring
        return None if ring is None else frozenset(key.id for key in ring.by_hash.values())

    def does(self, step: Callable[[RedisSource], Awaitable[None]]) -> Callable[[], None]:
        """The work of an actor: one step of the current incarnation."""
        source = self.source
        return lambda: self._loop.run_until_complete(step(source))

    def close(self) -> None:
        self._loop.run_until_complete(self.source.link.close())
        self._loop.close()
