"""What all routers spent and hold of a budget, in Redis, read and written by one atomic script.

weir:budget:<id>:<period> has for each life of a router its spending (s:, which only grows), its holding beyond that
(h:), the time of the report by Redis' clock (t:), and its refused requests (r:). A life silent for GONE_S holds
nothing. The control worker sets `since` once the database's counts are included: before, nobody gets more than it had,
since a Redis that returns empty would grant everything again.
"""

import time
from collections.abc import Sized

from router.contract.redis import redis_keys
from router.limits.budgets import Held
from router.request.spending import Spending
from router.sync.redis_link import RedisLink
from router.sync.script import Script

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


class RedisBudgets:
    def __init__(self, link: RedisLink, life: str, others: Sized) -> None:
        """`life` is <router>.<life>; `others` are the other live routers."""
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
