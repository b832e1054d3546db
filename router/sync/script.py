"""A Redis script that requests wait for: called by its hash, with a short time-out."""

import asyncio
from typing import Any

from redis.exceptions import NoScriptError

from router.sync.redis_link import FAILURES, RedisLink

ANSWER_S = 0.25  # a slow Redis must not delay requests; routers then use local knowledge
SLOW_S = 1.0  # pause after a time-out


class Script:
    def __init__(self, link: RedisLink, text: str) -> None:
        self._link = link
        self._text = text
        self._sha = ""
        self._slow_until = 0.0  # s, loop time

    async def run(self, key: str, *words: str | int) -> Any:
        """Run the script; None if Redis does not answer."""
        loop = asyncio.get_running_loop()
        if not self._link.up or loop.time() < self._slow_until:
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._run(key, *words)
        except TimeoutError:
            self._slow_until = loop.time() + SLOW_S
        except FAILURES as error:
            self._link.failed(error)
        return None

    async def _run(self, key: str, *words: str | int) -> Any:
        client = self._link.client
        if self._sha:
            try:
                return await client.evalsha(self._sha, 1, key, *words)
            except NoScriptError:  # Redis has lost its scripts
                pass
        self._sha = await client.script_load(self._text)
        return await client.evalsha(self._sha, 1, key, *words)
