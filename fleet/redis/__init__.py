"""Redis connections of the Django processes, with explicit time-outs."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
import redis.asyncio
from django.conf import settings

from router.contract.redis import redis_keys, staleness
from router.contract.redis.codec import Value, decode

CONNECT_S = 2
ANSWER_S = 3  # seconds; a page makes several calls, and a hanging Redis must not delay each by half a minute
# redis-py 8 ends a blocking read after 5 s by default; a subscriber of a quiet fleet waits longer.
QUIET_S = 30


@functools.cache
def connect() -> redis.Redis:
    """Return the client of this process; threads may share it."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=ANSWER_S, socket_connect_timeout=CONNECT_S)


def connect_async() -> redis.asyncio.Redis:
    """Return a client for the running event loop; the caller closes it."""
    return redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_timeout=QUIET_S, socket_connect_timeout=CONNECT_S)


def value_of(kind: type[Value], key: str) -> Value | None:
    """Return the value of one key; None if it is missing, unreadable or of another type. Raise redis.RedisError."""
    (raw,) = connect().mget([key])  # GET would fail on a list or a hash, and the key would never be written again
    return decode(kind, raw)


def drop_unless(wanted: str, key: str) -> None:
    """Delete a key whose type is not `wanted` ("set", "hash"), as every command on it would fail."""
    if connect().type(key) not in (wanted.encode(), b"none"):
        connect().delete(key)


def live_routers() -> list[str]:
    """Return the names of routers with a report within ROUTER_GONE_S."""
    names: Any = connect().zrangebyscore(redis_keys.ROUTERS, time.time() - staleness.ROUTER_GONE_S, "+inf")
    return sorted(name.decode() for name in names)


def values_of(kind: type[Value], key_of: Callable[[str], str], names: Sequence[str]) -> dict[str, Value]:
    """Return the readable values of the keys, by name. Raise redis.RedisError."""
    raws = connect().mget([key_of(name) for name in names]) if names else ()
    found = ((name, decode(kind, raw)) for name, raw in zip(names, raws, strict=True))
    return {name: value for name, value in found if value is not None}
