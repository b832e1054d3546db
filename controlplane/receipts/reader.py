"""Receipts in Redis: the recent ones, filtered, and one by its request id."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import redis

from router.contract import ranks
from router.contract.redis import redis_keys
from router.contract.redis.codec import decode
from router.contract.redis.receipt import Receipt

PAGE = 500
LIMIT_MAX = 500
OUTCOMES = ("ok", "error", "refused", "cancelled")


@dataclass(frozen=True, slots=True)
class ReceiptFilters:
    """Empty matches everything."""

    pool: str = ""
    request_class: str = ""
    instance: str = ""
    outcome: str = ""
    delivery: str = ""
    arm: str = ""  # of the delivery: candidate or control

    def match(self, receipt: Receipt) -> bool:
        return all(not wanted or wanted in _values(receipt, key) for key, wanted in asdict(self).items())


def _values(receipt: Receipt, key: str) -> tuple[str, ...]:
    """An instance is found by its own name and by that of its rank."""
    value = str(getattr(receipt, key))
    return (value, ranks.instance_of(value)) if key == "instance" else (value,)


def recent(client: redis.Redis, filters: ReceiptFilters, limit: int) -> list[Receipt]:
    """At most `limit` receipts (without candidates), newest first."""
    return list(islice(filter(filters.match, newest_receipts(client)), limit))


def newer_than(client: redis.Redis, filters: ReceiptFilters, at: float, limit: int = LIMIT_MAX) -> int:
    """How many matching receipts were written since Unix time `at`; counts up to `limit`."""
    since = f"({int(at * 1000)}-18446744073709551615"
    entries: Any = client.xrange(redis_keys.RECEIPTS, min=since, count=limit)
    return sum(filters.match(receipt) for _, fields in entries if (receipt := decode(Receipt, fields.get(b"r"))))


def written_at(client: redis.Redis) -> float:
    """When the newest receipt was written (the server's clock), 0 when there is none."""
    newest: Any = client.xrevrange(redis_keys.RECEIPTS, count=1)
    return _stamp(newest[0][0]) if newest else 0.0


def find(client: redis.Redis, request_id: str) -> Receipt | None:
    """The whole receipt with its candidates; None when there is none or it has expired (redis_keys.RECEIPT_TTL_S)."""
    value: Any = client.get(redis_keys.receipt_key(request_id))
    return decode(Receipt, value)


def newest_receipts(client: Any) -> Iterator[Receipt]:
    """The kept receipts without candidates, newest first."""
    end: str | bytes = "+"
    while entries := client.xrevrange(redis_keys.RECEIPTS, max=end, count=PAGE):
        for _, fields in entries:
            receipt = decode(Receipt, fields.get(b"r"))
            if receipt is not None:
                yield receipt
        end = b"(" + entries[-1][0]


def _stamp(entry: bytes) -> float:
    return int(entry.split(b"-")[0]) / 1000
