"""Reads receipts from Redis: those that match a query, and one by its request id."""

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Any

import redis

from controlplane.pages.receipts.query import SLOWEST, ReceiptQuery
from router.contract.redis import redis_keys
from router.contract.redis.codec import decode
from router.contract.redis.fleet_status import FleetEvent
from router.contract.redis.receipt import Receipt

PAGE = 500
LIMIT_MAX = 500
AROUND_S = 5.0  # time shown before and after a request
EVENTS_SEARCHED = 200
MEANWHILE = 6  # most events
ALIKE_SEARCHED = 1_000  # newest receipts that are searched for similar ones


def search(client: redis.Redis, query: ReceiptQuery, limit: int) -> list[Receipt]:
    """Return at most `limit` receipts (without candidates), in the requested order. Only a sorted list reads all
    stored receipts."""
    matching = filter(query.matcher(), newest_receipts(client))
    if query.sort == "newest":
        return list(islice(matching, limit))
    name = SLOWEST[query.sort]
    return heapq.nlargest(limit, matching, key=lambda receipt: _known(getattr(receipt, name)))


def _known(value: float | None) -> float:
    return -1.0 if value is None else value


def newer_than(client: redis.Redis, query: ReceiptQuery, at: float, limit: int = LIMIT_MAX) -> int:
    """Count the matching receipts written since the Unix time `at`, up to `limit`."""
    since = f"({int(at * 1000)}-18446744073709551615"
    entries: Any = client.xrange(redis_keys.RECEIPTS, min=since, count=limit)
    matches = query.matcher()
    return sum(matches(receipt) for _, fields in entries if (receipt := decode(Receipt, fields.get(b"r"))))


def written_at(client: redis.Redis) -> float:
    """Return when the newest receipt was written (by the server's clock); 0 if there is none."""
    newest: Any = client.xrevrange(redis_keys.RECEIPTS, count=1)
    return (int(newest[0][0].split(b"-")[0]) / 1000) if newest else 0.0


def find(client: redis.Redis, request_id: str) -> Receipt | None:
    """Return the whole receipt with its candidates; None if there is none or it has expired
    (redis_keys.RECEIPT_TTL_S)."""
    value: Any = client.get(redis_keys.receipt_key(request_id))
    return decode(Receipt, value)


def meanwhile(client: redis.Redis, receipt: Receipt) -> list[FleetEvent]:
    """Return the events of the request's router, instances and pool while it was in progress, oldest first."""
    begin, end = receipt.at - AROUND_S, receipt.at + (receipt.e2e_ms or 0) / 1000 + AROUND_S
    since = str(int(begin * 1000))
    entries: Any = client.xrange(redis_keys.EVENTS, min=since, count=EVENTS_SEARCHED)
    found = (decode(FleetEvent, fields.get(b"e")) for _, fields in entries)
    own = {receipt.router, receipt.instance, receipt.prefill_instance, *(one.instance for one in receipt.attempts)}
    return [
        event
        for event in found
        if event is not None and begin <= event.at <= end and (event.subject in own or receipt.pool in event.pools)
    ][:MEANWHILE]


def alike(client: redis.Redis, receipt: Receipt) -> list[Receipt]:
    """Return recent answers of the same pool and class, except this one."""
    same = (receipt.pool, receipt.request_class, "ok")
    newest = islice(newest_receipts(client), ALIKE_SEARCHED)
    return [
        one
        for one in newest
        if (one.pool, one.request_class, one.outcome) == same and one.request_id != receipt.request_id
    ]


def newest_receipts(client: Any) -> Iterator[Receipt]:
    """Yield the stored receipts without candidates, newest first."""
    end: str | bytes = "+"
    while entries := client.xrevrange(redis_keys.RECEIPTS, max=end, count=PAGE):
        for _, fields in entries:
            receipt = decode(Receipt, fields.get(b"r"))
            if receipt is not None:
                yield receipt
        end = b"(" + entries[-1][0]
