"""The shared token buckets of API keys in Redis; one atomic script lends from them."""

import asyncio
import time
from collections.abc import Sequence, Sized
from typing import Any

from redis.exceptions import NoScriptError

from router.contract.redis import redis_keys
from router.limits.budgets import Held
from router.limits.token_buckets import Grant, TokenRequest
from router.request.spending import Spending
from router.sync.redis_link import FAILURES, RedisLink

# KEYS: the key's bucket. ARGV: for each kind its name, limit per minute, needed amount, wanted amount. Grants all kinds
# or none; a negative amount returns tokens. Uses Redis's clock, because the routers' clocks may differ. A missing
# bucket is full, since a bucket's TTL is the time that it takes to fill. An unreadable bucket counts as missing.
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


# The amounts of a budget that all routers have spent and hold, in Redis, read and written by one atomic script.
# weir:budget:<id>:<period> has, for each incarnation of a router: its spending (s:, which only grows), the amount that
# it holds beyond that (h:), the time of its report by Redis's clock (t:), and its refused requests (r:). An incarnation
# that is silent for GONE_S holds nothing. The control worker sets `since` once the database's counts are included.
# Until then nobody gets more than it had, since a Redis that comes back empty would grant everything again.
GONE_S = 60

# ARGV: life, spent, required holding, present holding, wanted holding, limit, refused, expiry of the key.
_HOLD = f"""
local life, spent, floor, had = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local want, limit = tonumber(ARGV[5]), tonumber(ARGV[6])
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' then redis.call('DEL', KEYS[1]) end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local all, sum, holds, seen, since = redis.call('HGETALL', KEYS[1]), 0, {{}}, {{}}, nil
for i = 1, #all, 2 do
  local kind, name, value = string.sub(all[i], 1, 2), string.sub(all[i], 3), tonumber(all[i + 1])
  if all[i] == 'since' then since = value
  elseif value and kind == 's:' then
    if name == life then spent = math.max(spent, value) else sum = sum + value end
  elseif value and kind == 'h:' then holds[name] = value
  elseif value and kind == 't:' then seen[name] = value end
end
for name, held in pairs(holds) do
  if name ~= life and now - (seen[name] or 0) < {GONE_S} then sum = sum + held end
end
local ready = since and now >= since
local rest = limit - sum - spent
local hold = math.max(floor, ready and math.min(want, rest) or had)
local function whole(value) return string.format('%.0f', value) end
redis.call('HSET', KEYS[1], 's:' .. life, whole(spent), 'h:' .. life, whole(hold), 't:' .. life,
  string.format('%.3f', now))
if ARGV[7] ~= '0' then redis.call('HSET', KEYS[1], 'r:' .. life, ARGV[7]) end
redis.call('EXPIREAT', KEYS[1], ARGV[8])
return {{whole(hold), whole(rest - hold), ready and '1' or '0'}}
"""


# A Redis script whose result requests wait for: called by its hash, with a short time-out
ANSWER_S = 0.25  # a slow Redis must not delay requests; routers then use local knowledge
SLOW_S = 1.0  # pause after a time-out


class Script:
    def __init__(self, link: RedisLink, text: str) -> None:
        self._link = link
        self._text = text
        self._sha = ""
        self._slow_until = 0.0  # s, loop time

    async def run(self, key: str, *words: str | int) -> Any:
        """Run the script; return None if Redis does not answer."""
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


class RedisBudgets:
    def __init__(self, link: RedisLink, life: str, others: Sized) -> None:
        """`life` is <router>.<incarnation>; `others` are the other live routers."""
        self._script = Script(link, _HOLD)
        self._life = life
        self._others = others
        self.routers = 1

    async def hold(self, spending: Spending, want: int, had: int) -> Held | None:
        answer = await self._script.run(
            redis_keys.budget_key(spending.budget.id, spending.period.name),
            self._life,
            spending.spent,
            spending.reserved,
            max(0, had),
            want,
            spending.budget.limit,
            spending.refused,
            spending.period.kept_until(time.time()),
        )
        if answer is None:
            return None
        self.routers = len(self._others) + 1
        hold, rest, ready = (int(word) for word in answer)
        return Held(hold, rest if ready else None)


class TokenBucketStore:
    def __init__(self, link: RedisLink, others: Sized) -> None:
        """`others` are the other live routers."""
        self._script = Script(link, _LEND)
        self._others = others
        self.routers = 1  # number of routers that shared a limit when Redis last answered

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
