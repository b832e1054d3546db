"""Redis connections of the Django processes, with explicit time-outs."""

import functools

import redis
import redis.asyncio
from django.conf import settings

CONNECT_S = 2
ANSWER_S = 3  # a page makes several calls; a hanging Redis must not delay it by half a minute for each
# redis-py 8 ends a blocking read after 5 s by default; a subscriber of a quiet fleet waits longer.
QUIET_S = 30


@functools.cache
def connect() -> redis.Redis:
    """The client of this process; threads may share it."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=ANSWER_S, socket_connect_timeout=CONNECT_S)


def connect_async() -> redis.asyncio.Redis:
    """A client for the running event loop; the caller closes it."""
    return redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_timeout=QUIET_S, socket_connect_timeout=CONNECT_S)
