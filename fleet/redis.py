"""Connections to Redis for the Django processes, with the time-outs that redis-py would otherwise choose for us."""

import functools

import redis
import redis.asyncio
from django.conf import settings

CONNECT_S = 2
ANSWER_S = 3  # a page asks several times; a Redis that hangs must not keep its reader for half a minute each time
# redis-py 8 cuts a blocking read after 5 s by default; a subscriber on a quiet fleet waits longer than that.
QUIET_S = 30


@functools.cache
def connect() -> redis.Redis:
    """One client (and pool) per process; safe to share between threads."""
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=ANSWER_S, socket_connect_timeout=CONNECT_S)


def connect_async() -> redis.asyncio.Redis:
    """A client for the running event loop; the caller closes it."""
    return redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_timeout=QUIET_S, socket_connect_timeout=CONNECT_S)
