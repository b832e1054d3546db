"""The only ordered write of the values that the control plane publishes for routers.
Under one database lock, an order is allocated and the value is read, so a greater order never holds an older view.
Redis keeps the order of each key, even of a removed key, and a script refuses to write an order that is not greater: of
two writers, the one that read later wins, whichever write arrives first. Orders are at least the time in milliseconds,
so they grow even if the database was restored from a backup; routers that still have a greater order report it.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import redis
from django.db import InterfaceError, InternalError, OperationalError, connection, transaction
from django.db.models import BigIntegerField, F, Value
from django.db.models.functions import Greatest

from fleet.models import PublicationOrder
from fleet.redis import connect, live_routers, values_of
from router.contract.redis import codec, redis_keys
from router.contract.redis.codec import LARGEST_ORDER, OrderedValue
from router.contract.redis.router_status import RouterStatus

log = logging.getLogger(__name__)

Published = Mapping[str, OrderedValue | None]  # value by key, as in the database; None: routers must not have it

FAILURES = (
    redis.RedisError,
    OperationalError,
    InternalError,
    InterfaceError,
)  # errors of a write, which the periodic steps repeat later
TRIES = 3
# Limits for PostgreSQL, where a suspended process would keep the lock: the wait of other processes, and the time after
# which the suspended one loses the lock.
WAIT_MS = 5_000
SUSPENDED_MS = 10_000

# KEYS: weir:pools, then for each value its key, the key of its order, and the other key of its pool (or its own again).
# ARGV: the order, the TTL of a removed key's order, the channel, the largest order, then for each value the value
# (empty to remove it) and its pool, which may be empty. Returns the greatest of the greater orders; their keys stay
# unchanged.
_WRITE = """
local order, greatest = tonumber(ARGV[1]), 0
local function kind(key) return redis.call('TYPE', key)['ok'] end
local function held(key)
  local number = kind(key) == 'string' and tonumber(redis.call('GET', key)) or 0
  return number <= tonumber(ARGV[4]) and number or 0
end
local function list(pool, other, there)
  if kind(KEYS[1]) ~= 'set' then redis.call('DEL', KEYS[1]) end
  if there then redis.call('SADD', KEYS[1], pool)
  elseif redis.call('EXISTS', other) == 0 then redis.call('SREM', KEYS[1], pool) end
end
for i = 2, #KEYS, 3 do
  local key, mark, other = KEYS[i], KEYS[i + 1], KEYS[i + 2]
  local value, pool = ARGV[5 + (i - 2) / 3 * 2], ARGV[6 + (i - 2) / 3 * 2]
  local before = held(mark)
  if before > order then greatest = math.max(greatest, before)
  elseif before < order then
    if value == '' then
      redis.call('DEL', key)
      redis.call('SET', mark, ARGV[1], 'EX', ARGV[2])
    else
      redis.call('SET', key, value)
      redis.call('SET', mark, ARGV[1])
    end
    if pool ~= '' then list(pool, other, value ~= '') end
    redis.call('PUBLISH', ARGV[3], key)
  end
end
return greatest
"""


def publish(read: Callable[[], Published]) -> None:
    """Write what `read` returns from the database. Raise FAILURES. Call it outside of transactions, which might not
    commit."""
    for _ in range(TRIES):
        order, found = read_in_order(read)
        greater = write(order, found)
        if not greater or not _raise_to(greater):
            return
    log.error("Redis refused %s: it holds greater orders again and again", ", ".join(found))


@transaction.atomic(durable=True)
def read_in_order(read: Callable[[], Published]) -> tuple[int, Published]:
    """Return what `read` returns, and its order. The row lock is held until both are known."""
    _limit_the_lock()
    return _allocate(), read()


def _limit_the_lock() -> None:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = {WAIT_MS:d}")
            cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = {SUSPENDED_MS:d}")


def _allocate() -> int:
    row = PublicationOrder.objects.filter(pk=1)
    now_ms = Value(time.time_ns() // 1_000_000, output_field=BigIntegerField())
    greater = Greatest(F("last") + 1, now_ms)
    if not row.update(last=greater):
        PublicationOrder.objects.get_or_create(pk=1)
        row.update(last=greater)
    return row.values_list("last", flat=True).get()


def _raise_to(order: int) -> bool:
    """Raise the order to this one. Return False if that order was already allocated here: its reader then saw the same
    state as this one, or a later state.
    """
    return bool(PublicationOrder.objects.filter(pk=1, last__lt=order).update(last=order))


def write(order: int, found: Published) -> int:
    """Write each key whose order in Redis is lower; return the greatest order of the other keys, 0 if there are
    none."""
    at = time.time()
    keys = [redis_keys.POOLS]
    words: list[str | bytes | int] = [order, redis_keys.REMOVED_TTL_S, redis_keys.CHANGED, LARGEST_ORDER]
    for key, value in found.items():
        keys += [key, redis_keys.order_key(key), redis_keys.beside(key)]
        words += [codec.encode(value.stamped(order, at)) if value is not None else "", redis_keys.pool_of(key)]
    answer: Any = connect().eval(_WRITE, len(keys), *keys, *words)
    return int(answer)


def refused_by_routers() -> set[str]:
    """Return the keys whose value live routers refuse, as they hold a greater order; the next order will be greater."""
    statuses = values_of(RouterStatus, redis_keys.router_key, live_routers()).values()
    refused = [named for status in statuses for named in status.refused.items()]
    if refused:
        _raise_to(max(order for _, order in refused))
    return {key for key, _ in refused}


def differing(found: Published, refused: Collection[str] = ()) -> list[str]:
    """Return the keys whose value differs in Redis, those that routers refuse, and those whose pool is not listed
    there.
    """
    with connect().pipeline(transaction=False) as pipe:
        pipe.mget(list(found))
        pipe.smembers(redis_keys.POOLS)
        raws, listed = pipe.execute(raise_on_error=False)
    if isinstance(raws, redis.RedisError):
        raise raws
    pools = set() if isinstance(listed, redis.RedisError) else {name.decode() for name in listed}
    held = dict(zip(found, raws, strict=True))
    return [key for key in found if key in refused or not _holds(held[key], key, found[key], pools)]


def _holds(raw: bytes | None, key: str, value: OrderedValue | None, listed: set[str]) -> bool:
    if value is None:
        return raw is None
    pool = redis_keys.pool_of(key)
    return value.says_the_same(codec.decode(type(value), raw)) and (not pool or pool in listed)
