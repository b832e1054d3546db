"""Throttles password guesses: Redis counts failed attempts per user name and address."""

import hashlib

import redis
import structlog

from fleet.redis import connect
from router.contract.redis import redis_keys

log = structlog.get_logger(__name__)
ATTEMPTS = 8
WINDOW_S = 900


def key(username: str, address: str) -> str:
    """Hashed, because people type their password into the name field by mistake."""
    return f"{redis_keys.SIGNIN}:{hashlib.sha256(f'{username.lower()}|{address}'.encode()).hexdigest()[:32]}"


def wait_s(username: str, address: str) -> int:
    """Seconds until the next attempt is allowed; 0 means now. Without Redis every attempt is allowed."""
    try:
        name = key(username, address)
        count = int(connect().get(name) or 0)
        return 0 if count < ATTEMPTS else max(int(connect().ttl(name)), 1)
    except redis.RedisError as error:
        log.warning("signin.throttle_away", error=str(error))
        return 0


def failed(username: str, address: str) -> None:
    try:
        with connect().pipeline(transaction=True) as pipe:
            pipe.incr(key(username, address))
            pipe.expire(key(username, address), WINDOW_S, nx=True)
            pipe.execute()
    except redis.RedisError as error:
        log.warning("signin.throttle_away", error=str(error))


def succeeded(username: str, address: str) -> None:
    try:
        connect().delete(key(username, address))
    except redis.RedisError as error:
        log.warning("signin.throttle_away", error=str(error))
