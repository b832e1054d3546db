"""Reads the traffic that routers have recorded (docs/redis.md) from Redis."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from controlplane.common.description import Description
from fleet.redis import connect
from router.contract.redis import redis_keys
from router.contract.redis.codec import decode
from router.contract.redis.receipt import TrafficEntry

PAGE = 500  # entries read at a time

# Counted inside Redis, because pages that list traces need three numbers, not 30 MB; counted page by page, because a
# script blocks Redis. Ids of a stream begin with the time in ms.
_COUNT = """
local found, last = {}, ''
local page = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
for _, entry in ipairs(page) do
  local pool, ms = entry[2][2], tonumber(string.match(entry[1], '^%d+'))
  local one = found[pool]
  if one then one[1], one[3] = one[1] + 1, ms else found[pool] = {1, ms, ms} end
  last = entry[1]
end
local answer = {last}
for pool, one in pairs(found) do answer[#answer + 1] = {pool, one[1], one[2], one[3]} end
return answer
"""


@dataclass(frozen=True, slots=True)
class RecordedTraffic:
    """The recorded traffic of a pool."""

    requests: Annotated[int, Description("Finished requests, served or not")]
    oldest_age_s: float
    newest_age_s: float


def recorded() -> dict[str, RecordedTraffic]:
    """Return recorded traffic by pool. Raises redis.RedisError."""
    counted: dict[bytes, tuple[int, int, int]] = {}  # (count, ms of the first, ms of the last)
    start = "-"
    while True:
        page: Any = connect().eval(_COUNT, 1, redis_keys.TRAFFIC, start, str(PAGE))
        last, pools = page[0], page[1:]
        for pool, count, oldest, newest in pools:
            before = counted.get(pool, (0, oldest, newest))
            counted[pool] = (before[0] + count, before[1], newest)
        if sum(count for _, count, _, _ in pools) < PAGE:
            break
        start = f"({last.decode()}"
    now = time.time()
    return {
        pool.decode(): RecordedTraffic(count, max(0.0, now - oldest / 1000), max(0.0, now - newest / 1000))
        for pool, (count, oldest, newest) in counted.items()
    }


def lines_of(pool: str) -> list[bytes]:
    """Return the entries of the pool as JSON, oldest first, without unreadable ones. Raises redis.RedisError."""
    name = pool.encode()
    return [raw for found, raw in _entries() if found == name and _is_readable(raw)]


def newest_of(pool: str, count: int, until: str = "") -> tuple[list[bytes], str]:
    """Return (the newest `count` readable entries of the pool, oldest first; the id of the newest entry of all pools).
    If `until` is an id, later entries are left out. Raise redis.RedisError.
    """
    name, found, newest = pool.encode(), list[bytes](), until
    start = until or "+"
    while len(found) < count:
        page: Any = connect().xrevrange(redis_keys.TRAFFIC, start, "-", count=PAGE)
        found += [v[b"t"] for _, v in page if v.get(b"p") == name and _is_readable(v.get(b"t", b""))]
        newest = newest or (page[0][0].decode() if page else "")
        if len(page) < PAGE:
            break
        start = f"({page[-1][0].decode()}"
    return found[:count][::-1], newest


def _is_readable(raw: bytes) -> bool:
    return decode(TrafficEntry, raw) is not None


def _entries() -> Iterator[tuple[bytes, bytes]]:
    """Yield (pool, entry) of every pool."""
    start = "-"
    while True:
        page: Any = connect().xrange(redis_keys.TRAFFIC, start, "+", count=PAGE)
        for _, values in page:
            yield values.get(b"p", b""), values.get(b"t", b"")
        if len(page) < PAGE:
            return
        start = f"({page[-1][0].decode()}"
