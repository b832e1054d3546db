"""The router's connection to Redis and its health. Serving continues when the connection fails."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

log = logging.getLogger("weir.router")

# A server that hangs looks like a slow one, so commands that are sent every second must not wait longer.
ANSWER_S = 1.0
NOT_ASKED = "not asked yet"
FAILURES = (RedisError, OSError, TimeoutError)


class RedisLink:
    def __init__(self, url: str) -> None:
        self.url = url
        self.client = redis.asyncio.Redis.from_url(
            url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S, retry=Retry(NoBackoff(), 0)
        )
        # Ends loops between steps, because cancelling a command would leak its connection
        self.stopping = asyncio.Event()
        self.up = False
        self.down_since: float | None = time.time()  # s, Unix; None while Redis answers
        self.why = NOT_ASKED

    async def get(self, key: str) -> str | None:
        return _text(await self.client.get(key))

    async def mget(self, keys: Sequence[str]) -> list[str | None]:
        return [_text(raw) for raw in await self.client.mget(keys)] if keys else []

    async def names(self, answer: Awaitable[Iterable[object]]) -> list[str]:
        return [name for raw in await answer if (name := _text(raw)) is not None]

    def answered(self) -> None:
        if not self.up:
            log.info("Redis answers")
        self.up, self.down_since, self.why = True, None, ""

    def failed(self, error: BaseException) -> None:
        if self.up or self.why == NOT_ASKED:
            log.warning("Redis does not answer: %s", error)
        if self.down_since is None:
            self.down_since = time.time()
        self.up, self.why = False, str(error) or type(error).__name__

    async def every(self, seconds: float, step: Callable[[], Awaitable[None]]) -> None:
        """Run `step` periodically. A failure of Redis sets `why`, other exceptions are logged; the loop continues in
        both cases."""
        while not self.stopping.is_set():
            try:
                await step()
            except FAILURES as error:
                self.failed(error)
            except Exception:
                log.exception("step failed")
            await self.pause(seconds)

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until the router stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    def subscriber(self) -> redis.asyncio.Redis:
        """Return a client for subscriptions, to be closed by the caller. It has no read time-out, because channels may
        be quiet."""
        return redis.asyncio.Redis.from_url(
            self.url, socket_timeout=None, socket_connect_timeout=ANSWER_S, retry=Retry(NoBackoff(), 0)
        )

    async def close(self) -> None:
        with contextlib.suppress(*FAILURES):
            await self.client.aclose()


def _text(raw: object) -> str | None:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else None
