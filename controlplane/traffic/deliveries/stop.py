"""`manage.py deliver --stop POOL`: returns every router to the live version, through Redis alone. It needs neither the
database nor models, so manage.py runs it without setting up Django. The judge records the stop later.
"""

import sys
import time
from argparse import ArgumentParser
from typing import Any

import redis

from fleet.redis import connect
from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import StopValue
from router.contract.redis.published import PolicyValue, SplitRollout

REFUSED = 2
WHY = "stopped from the command line"
ANY = 0
ANY_TTL_S = 300  # short, because the stop would also end the next delivery


class NothingToStop(Exception):
    """Raised if no delivery splits the pool's requests."""


def stop(pool: str, why: str) -> str:
    """Stop the delivery and return a sentence. Raise NothingToStop and redis.RedisError."""
    client: Any = connect()
    raw = client.get(redis_keys.policy_key(pool))
    delivery = _delivery(pool, raw)
    value = StopValue(delivery=delivery, why=why, by="person", at=time.time())
    with client.pipeline(transaction=True) as pipe:
        pipe.set(redis_keys.stop_key(pool), codec.encode(value), ex=redis_keys.STOP_TTL_S if delivery else ANY_TTL_S)
        pipe.publish(redis_keys.CHANGED, redis_keys.stop_key(pool))
        _, heard = pipe.execute()
    what = f"delivery {delivery}" if delivery else "whatever delivery there is"
    return f"{pool}: stopped {what}; {heard} processes were told, and serve the live version at once"


def _delivery(pool: str, raw: bytes | None) -> int:
    """Return the delivery to stop; ANY if its policy cannot be read. A stop that names its delivery does not end the
    next one."""
    value = codec.decode(PolicyValue, raw)
    if value is None:
        return ANY
    if not isinstance(value.rollout, SplitRollout):
        raise NothingToStop(f"{pool}: no delivery splits its requests; v{value.version} serves them all")
    return value.rollout.delivery


def run(pool: str, why: str) -> int:
    """Stop the pool's delivery and return the exit status."""
    try:
        print(stop(pool, why.strip() or WHY))
    except NothingToStop as error:
        print(f"weir: {error}", file=sys.stderr)
        return REFUSED
    except redis.RedisError as error:
        print(f"weir: Redis does not answer, so routers serve the live version within 30 s ({error})", file=sys.stderr)
        return 1
    return 0


def main(argv: list[str]) -> int:
    parser = ArgumentParser(prog="manage.py deliver")
    parser.add_argument("--stop", metavar="POOL", required=True)
    parser.add_argument("--reason", default="")
    given = parser.parse_args(argv)
    return run(given.stop, given.reason)
