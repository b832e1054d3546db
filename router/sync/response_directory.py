"""Shares through Redis which instance stores which response."""

import asyncio
import time

import msgpack

from router.contract.redis import codec, redis_keys
from router.contract.redis.stored_response import StoredResponse
from router.serving.stored import KEPT
from router.sync.redis_link import FAILURES, RedisLink

LOOK_UP_S = 0.5
WRITE_S = 0.2
AGAIN_S = 0.3  # wait for another router's recent answer that is not written yet
BATCH = 500  # responses in one command

# ARGV: number kept, time to live in s, now, then packed (key, value, 1 if it replaces). KEYS[1]: their keys by age
_KEEP = """
local words = cmsgpack.unpack(ARGV[4])
for i = 1, #words, 3 do
  if words[i + 2] == 1 or redis.call('EXISTS', words[i]) == 0 then
    redis.call('SET', words[i], words[i + 1], 'EX', ARGV[2])
    redis.call('ZADD', KEYS[1], ARGV[3], words[i])
  end
end
local most = redis.call('ZCARD', KEYS[1]) - ARGV[1]
if most > 0 then
  for _, key in ipairs(redis.call('ZRANGE', KEYS[1], 0, most - 1)) do
    redis.call('DEL', key)
  end
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, most - 1)
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[3] - ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[2])
"""


class ResponseDirectory:
    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._changed: dict[str, tuple[StoredResponse, bool]] = {}  # not yet written, and whether they replace others

    def kept(self, name: str, owner: StoredResponse, *, replaces: bool = False) -> None:
        self._changed[name] = owner, replaces
        if len(self._changed) > KEPT:
            del self._changed[next(iter(self._changed))]

    async def write(self) -> None:
        """Write the changes, every WRITE_S."""
        while self._changed:
            batch = dict(list(self._changed.items())[:BATCH])
            words = [
                part
                for name, (owner, replaces) in batch.items()
                for part in (redis_keys.response_key(name), codec.encode(owner), int(replaces))
            ]
            packed = msgpack.packb(words, use_bin_type=False)  # Redis' cmsgpack reads only the old format
            limits = (redis_keys.RESPONSES_KEPT, redis_keys.RESPONSE_TTL_S, int(time.time()))
            await self._link.client.eval(_KEEP, 1, redis_keys.RESPONSES, *limits, packed)
            for name, change in batch.items():
                if self._changed.get(name) is change:
                    del self._changed[name]

    async def look_up(self, name: str) -> StoredResponse | None:
        if not self._link.up:
            return None
        owner = await self._read(name)
        if owner is None:
            await asyncio.sleep(AGAIN_S)
            owner = await self._read(name)
        return owner

    async def _read(self, name: str) -> StoredResponse | None:
        try:
            async with asyncio.timeout(LOOK_UP_S):
                return codec.decode(StoredResponse, await self._link.get(redis_keys.response_key(name)))
        except TimeoutError:
            return None
        except FAILURES as error:
            self._link.failed(error)
            return None

    async def forget(self, name: str) -> None:
        self._changed.pop(name, None)
        try:
            await self._link.client.delete(redis_keys.response_key(name))
        except FAILURES as error:
            self._link.failed(error)  # it expires; until then the engine answers 404
