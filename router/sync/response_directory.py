"""Records in Redis, for all routers, which instance stores which response."""

import asyncio
import time

import msgpack

from router.contract.redis import codec, redis_keys
from router.contract.redis.published import StoredResponse
from router.serving.stored import KEPT, FairlyKept
from router.sync.redis_link import FAILURES, RedisLink

LOOK_UP_S = 0.5
WRITE_S = 0.2
AGAIN_S = 0.3  # time to wait for a response that another router has not written yet
BATCH = 500  # responses in one command

# ARGV: number kept, time to live in s, now, then packed (set of the API key, key, value, 1 if it replaces) for each.
# KEYS[1]: the sizes of those sets, which hold keys by age. If there are more than that number, the largest set loses
# its oldest entry and a few more.
_KEEP = """
local most, ttl, now, words = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), cmsgpack.unpack(ARGV[4])
for i = 1, #words, 4 do
  local set, key = words[i], words[i + 1]
  if words[i + 3] == 1 or redis.call('EXISTS', key) == 0 then
    redis.call('SET', key, words[i + 2], 'EX', ttl)
    redis.call('ZADD', set, now, key)
    redis.call('EXPIRE', set, ttl)
    redis.call('ZADD', KEYS[1], redis.call('ZCARD', set), set)
  end
end
redis.call('EXPIRE', KEYS[1], ttl)
local sets, total = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), 0
for i = 2, #sets, 2 do total = total + sets[i] end
if total <= most then return end
total = 0
for i = 1, #sets, 2 do
  redis.call('ZREMRANGEBYSCORE', sets[i], 0, now - ttl)
  local size = redis.call('ZCARD', sets[i])
  redis.call('ZADD', KEYS[1], size, sets[i])
  total = total + size
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, 0)
while total > most - math.floor(most / 100) do
  local largest = redis.call('ZREVRANGE', KEYS[1], 0, 1, 'WITHSCORES')
  local size, second = tonumber(largest[2]), tonumber(largest[4] or 0)
  local gone = math.min(total - most + math.floor(most / 100), math.max(1, size - second))
  for _, key in ipairs(redis.call('ZRANGE', largest[1], 0, gone - 1)) do
    redis.call('DEL', key)
  end
  redis.call('ZREMRANGEBYRANK', largest[1], 0, gone - 1)
  redis.call('ZADD', KEYS[1], size - gone, largest[1])
  total = total - gone
end
"""


class ResponseDirectory:
    def __init__(self, link: RedisLink) -> None:
        self._link = link
        # Responses not yet written, and whether each replaces another
        self._changed = FairlyKept[tuple[StoredResponse, bool]](KEPT)

    def kept(self, key_id: str, name: str, owner: StoredResponse, *, replaces: bool = False) -> None:
        self._changed.put(key_id, name, (owner, replaces))

    async def write(self) -> None:
        """Write the changes, every WRITE_S."""
        while self._changed:
            batch = self._changed.first(BATCH)
            words = [
                part
                for key_id, name, (owner, replaces) in batch
                for part in (
                    *(redis_keys.responses_key(key_id), redis_keys.response_key(name)),
                    *(codec.encode(owner), int(replaces)),
                )
            ]
            packed = msgpack.packb(words, use_bin_type=False)  # Redis' cmsgpack reads only the old format
            limits = (redis_keys.RESPONSES_KEPT, redis_keys.RESPONSE_TTL_S, int(time.time()))
            await self._link.client.eval(_KEEP, 1, redis_keys.RESPONSES, *limits, packed)
            for key_id, name, change in batch:
                if self._changed.get(key_id, name) is change:
                    self._changed.remove(key_id, name)

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

    async def forget(self, key_id: str, name: str) -> None:
        self._changed.remove(key_id, name)
        try:
            await self._link.client.delete(redis_keys.response_key(name))
        except FAILURES as error:
            self._link.failed(error)  # the entry expires; until then the engine answers 404
