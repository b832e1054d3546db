"""The shared token buckets of API keys in Redis, borrowed from by one atomic script."""

from collections.abc import Sequence, Sized

from router.contract.redis import redis_keys
from router.limits.token_buckets import Grant, TokenRequest
from router.sync.redis_link import RedisLink
from router.sync.script import Script

# KEYS: the key's bucket. ARGV: for each kind its name, limit per minute, needed amount, wanted amount. Grants all kinds
# or none; a negative amount gives back. Uses the clock of Redis, as the routers' clocks may differ. A missing bucket is
# full: its TTL is the time that it takes to fill. One that cannot be read counts as missing.
_LEND = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' then redis.call('DEL', KEYS[1]) end
local held = redis.call('HGETALL', KEYS[1])
local at, levels = now, {}
for i = 1, #held, 2 do
  if held[i] == 'at' then at = tonumber(held[i + 1]) or now else levels[held[i]] = tonumber(held[i + 1]) end
end
local wait = 0
for i = 1, #ARGV, 4 do
  local limit, need = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local level = math.min(limit, (levels[ARGV[i]] or limit) + math.max(0, now - at) * limit / 60)
  levels[ARGV[i]] = level
  if level < need then wait = math.max(wait, (need - level) * 60 / limit) end
end
local answer = {string.format('%.6f', wait)}
for i = 1, #ARGV, 4 do
  local limit, need, want = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local granted = 0
  if wait == 0 then granted = math.min(want, levels[ARGV[i]]) end
  levels[ARGV[i]] = math.min(limit, levels[ARGV[i]] - granted)
  answer[#answer + 1] = string.format('%.6f', granted)
  answer[#answer + 1] = string.format('%.6f', levels[ARGV[i]])
end
local set = {'at', string.format('%.6f', now)}
for name, level in pairs(levels) do
  set[#set + 1] = name
  set[#set + 1] = string.format('%.6f', level)
end
redis.call('HSET', KEYS[1], unpack(set))
redis.call('EXPIRE', KEYS[1], 61)
return answer
"""


class TokenBucketStore:
    def __init__(self, link: RedisLink, others: Sized) -> None:
        """`others` are the other live routers."""
        self._script = Script(link, _LEND)
        self._others = others
        self.routers = 1  # number of routers sharing a limit when Redis last answered

    async def borrow(self, key_id: str, token_requests: Sequence[TokenRequest]) -> Grant | None:
        """Borrow; None if Redis does not answer."""
        words: list[str] = []
        for token_request in token_requests:
            words += (
                token_request.kind,
                str(token_request.limit),
                repr(float(token_request.needed)),
                repr(float(token_request.wanted)),
            )
        answer = await self._script.run(redis_keys.limit_key(key_id), *words)
        if answer is None:
            return None
        self.routers = len(self._others) + 1
        return _grant(answer)


def _grant(answer: list[bytes]) -> Grant:
    wait, *rest = (float(word) for word in answer)
    return Grant(wait, tuple(rest[::2]), tuple(rest[1::2]))
