"""Reads the judge's input: tallies, routers, stops, receipts."""

from collections.abc import Sequence
from typing import Any

import redis

from controlplane.traffic.deliveries.judge.statistics import slow
from controlplane.traffic.deliveries.judge.sums import Traffic
from fleet.redis import connect, live_routers, values_of
from router.contract.redis import codec, redis_keys
from router.contract.redis.codec import Unreadable
from router.contract.redis.delivery import DeliveryTally, StopValue, WatchValue
from router.contract.redis.receipt import Receipt
from router.contract.redis.router_status import RouterStatus

LEARNED_FROM = 5_000  # newest receipts


def read(delivery: int, generation: int | None = None) -> Traffic:
    """Read the traffic; with `generation`, only the tallies of that generation. Raise redis.RedisError."""
    raws: Any = connect().hgetall(redis_keys.delivery_key(delivery))
    tallies, unreadable = [], []
    for name, raw in sorted(raws.items()):
        if generation is not None and not name.endswith(b".g%d" % generation):
            continue
        try:
            tallies.append(codec.read(DeliveryTally, raw))
        except Unreadable:
            unreadable.append(name.decode(errors="replace"))
    routers = values_of(RouterStatus, redis_keys.router_key, live_routers())
    return Traffic(tuple(tallies), tuple(unreadable), routers)


def stop_of(delivery: int, pools: Sequence[str]) -> StopValue | None:
    """Return the first stop that concerns this delivery. Raise redis.RedisError."""
    found = values_of(StopValue, redis_keys.stop_key, list(pools))
    return next((stop for _, stop in sorted(found.items()) if stop.delivery in (0, delivery)), None)


def renew_watch(delivery: int, generation: int, pools: Sequence[str]) -> None:
    """Let routers keep splitting for another WATCH_TTL_S. Raise redis.RedisError."""
    value = codec.encode(WatchValue(delivery=delivery, generation=generation))
    with connect().pipeline(transaction=False) as pipe:
        for pool in pools:
            pipe.set(redis_keys.watch_key(pool), value, ex=redis_keys.WATCH_TTL_S)
        pipe.execute()


def learned_limits(pools: Sequence[str], version: int) -> slow.Limits:
    """Return the limits of slow requests, learned from the newest receipts of the live version; {} without Redis."""
    return slow.limits(
        (receipt.request_class, receipt.prompt_tokens, receipt.ttft_ms)
        for receipt in newest_receipts()
        if receipt.pool in pools and receipt.version == version
        if receipt.request_class and receipt.prompt_tokens and receipt.ttft_ms and receipt.outcome == "ok"
    )


def newest_receipts() -> list[Receipt]:
    """Return the receipts of all pools, newest first; none without Redis."""
    try:
        entries: Any = connect().xrevrange(redis_keys.RECEIPTS, count=LEARNED_FROM)
    except redis.RedisError:
        return []
    receipts = (codec.decode(Receipt, fields.get(b"r")) for _, fields in entries)
    return [receipt for receipt in receipts if receipt is not None]
