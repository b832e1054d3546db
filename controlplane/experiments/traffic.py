"""What routers have recorded (router/wire.py, Traffic), as it is in Redis now."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fleet.redis import connect
from router import wire

PAGE = 1_000  # entries in one answer

# Counted where they are: the pages that list traces need three numbers, not 30 MB. A stream's ids begin with the ms.
_COUNT = """
local found, from = {}, '-'
while true do
  local page = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', ARGV[1])
  for _, entry in ipairs(page) do
    local pool, ms = entry[2][2], tonumber(string.match(entry[1], '^%d+'))
    local one = found[pool]
    if one then one[1], one[3] = one[1] + 1, ms else found[pool] = {1, ms, ms} end
  end
  if #page < tonumber(ARGV[1]) then break end
  from = '(' .. page[#page][1]
end
local answer = {}
for pool, one in pairs(found) do answer[#answer + 1] = {pool, one[1], one[2], one[3]} end
return answer
"""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What there is of one pool."""

    requests: int
    oldest_at: float  # s, Unix, when it was written
    newest_at: float


def recorded() -> dict[str, Recorded]:
    """By pool. Raises redis.RedisError."""
    answer: Any = connect().eval(_COUNT, 1, wire.TRAFFIC, str(PAGE))
    return {pool.decode(): Recorded(count, oldest / 1000, newest / 1000) for pool, count, oldest, newest in answer}


def lines_of(pool: str) -> list[bytes]:
    """The pool's entries as JSON, oldest first; what cannot be read is left out. Raises redis.RedisError."""
    name = pool.encode()
    return [raw for found, raw in _entries() if found == name and wire.decode(raw) is not None]


def _entries() -> Iterator[tuple[bytes, bytes]]:
    """(pool, entry) of everything."""
    start = "-"
    while True:
        page: Any = connect().xrange(wire.TRAFFIC, start, "+", count=PAGE)
        for _, values in page:
            yield values.get(b"p", b""), values.get(b"t", b"")
        if len(page) < PAGE:
            return
        start = f"({page[-1][0].decode()}"
