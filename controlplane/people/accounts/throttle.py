"""Throttles password guesses. Redis counts attempts per name and address, per name, and per address.
An attempt is counted before its password is checked, so that concurrent attempts cannot all pass. A correct password
removes its own attempt. Without Redis, every attempt is allowed.
"""

import hashlib

import redis
import structlog

from fleet.redis import connect
from router.contract.net.addresses import network_of
from router.contract.redis import redis_keys

log = structlog.get_logger(__name__)
WINDOW_S = 900
ATTEMPTS = 8  # attempts in the window for one name from one address
NAME_ATTEMPTS = 40  # attempts for one name from all addresses
ADDRESS_ATTEMPTS = 40  # attempts for all names from one address


def attempt(username: str, address: str) -> int:
    """Count an attempt; return the seconds until the next one is allowed, 0 if this one is."""
    counters = _counters(username, address)
    try:
        with connect().pipeline(transaction=True) as pipe:
            for key in counters:
                pipe.incr(key)
                pipe.expire(key, WINDOW_S, nx=True)
                pipe.ttl(key)
            found = pipe.execute()
    except redis.RedisError as error:
        log.warning("signin.throttle_away", error=str(error))
        return 0
    counts, ttls = found[0::3], found[2::3]
    limits = counters.values()
    return max(
        (max(ttl, 1) for count, limit, ttl in zip(counts, limits, ttls, strict=True) if count > limit), default=0
    )


def succeeded(username: str, address: str) -> None:
    """Forget the failures for this name. Failures for other names from this address remain."""
    together, name, place = _counters(username, address)
    try:
        with connect().pipeline(transaction=True) as pipe:
            pipe.delete(together, name)
            pipe.decr(place)
            pipe.expire(place, WINDOW_S, nx=True)
            pipe.execute()
    except redis.RedisError as error:
        log.warning("signin.throttle_away", error=str(error))


def _counters(username: str, address: str) -> dict[str, int]:
    """Return key → limit, for name and address together, for the name, and for the address."""
    name, place = username.lower(), network_of(address)
    return {
        _key(f"{name}|{place}"): ATTEMPTS,
        _key(f"name|{name}"): NAME_ATTEMPTS,
        _key(f"address|{place}"): ADDRESS_ATTEMPTS,
    }


def _key(counted: str) -> str:
    """Return a hashed key, because people sometimes type their password into the name field."""
    return f"{redis_keys.SIGNIN}:{hashlib.sha256(counted.encode()).hexdigest()[:32]}"
