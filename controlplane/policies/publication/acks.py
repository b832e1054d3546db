"""Hearing from the routers that they run a version."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import redis

from fleet.redis import connect
from router.contract import codec, redis_keys, staleness

WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Ack:
    router: str
    ms: float  # from handing the version to Redis until the router said that it runs it in every pool


def live_routers(now: float | None = None) -> list[str]:
    """Routers heard of within ROUTER_GONE_S, by name."""
    since = (time.time() if now is None else now) - staleness.ROUTER_GONE_S
    names: Any = connect().zrangebyscore(redis_keys.ROUTERS, since, "+inf")
    return sorted(name.decode() for name in names)


class AckWaiter:
    """Subscribes before the version is published, so that no acknowledgement is missed."""

    def __init__(self) -> None:
        self._pubsub: Any = connect().pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(redis_keys.ACKS)

    def close(self) -> None:
        self._pubsub.close()

    def wait(self, version: int, pools: Iterable[str], routers: Iterable[str], since: float) -> tuple[Ack, ...]:
        """The routers that acknowledged `version` for all pools, until all did or WAIT_S after `since` (monotonic)."""
        missing = {router: set(pools) for router in routers}
        acks: list[Ack] = []
        while missing and (left := since + WAIT_S - time.monotonic()) > 0:
            message = self._pubsub.get_message(timeout=left)
            value = codec.decode(message["data"]) if message else None
            if value is None or value.get("version") != version:
                continue
            router = str(value.get("router"))
            waiting = missing.get(router)
            if waiting is not None:
                waiting.discard(value.get("pool"))
                if not waiting:
                    del missing[router]
                    acks.append(Ack(router, round((time.monotonic() - since) * 1000, 1)))
        return tuple(acks)


def open_waiter() -> AckWaiter | None:
    """None when Redis is away."""
    try:
        return AckWaiter()
    except redis.RedisError:
        return None
