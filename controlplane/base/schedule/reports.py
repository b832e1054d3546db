"""Reports of when each step last ran and which control workers are running, in Redis for Live, `doctor` and
`/metrics`."""

import contextlib
import time
from collections.abc import Collection
from typing import Any

import redis

from fleet.redis import connect, drop_unless
from router.contract.redis import codec, redis_keys
from router.contract.redis.fleet_status import StepReport
from router.contract.redis.staleness import WORKER_DOWN_S

LEASE = "lease"  # report by a control worker that cannot write its lease; withdrawn once it can


def write(name: str, report: StepReport) -> None:
    with contextlib.suppress(redis.RedisError):  # Everything else that needs Redis reports the failure.
        connect().hset(redis_keys.STEPS, name, codec.encode(report))


def forget_all_but(names: Collection[str]) -> None:
    """Forget steps that exist only in other releases, because they would be late forever."""
    with contextlib.suppress(redis.RedisError):
        drop_unless("hash", redis_keys.STEPS)
        for name in set(read(connect())) - set(names):
            connect().hdel(redis_keys.STEPS, name)


def read(client: redis.Redis) -> dict[str, StepReport]:
    """Return the reports by step. Raise redis.RedisError."""
    return decoded(client.hgetall(redis_keys.STEPS))


def decoded(raw: Any) -> dict[str, StepReport]:
    found = {name.decode(): codec.decode(StepReport, value) for name, value in sorted(raw.items())}
    return {name: report for name, report in found.items() if report is not None}


def tell_worker(worker: str) -> None:
    with contextlib.suppress(redis.RedisError):
        drop_unless("zset", redis_keys.CONTROL_WORKERS)
        connect().zadd(redis_keys.CONTROL_WORKERS, {worker: time.time()})
        connect().zremrangebyscore(redis_keys.CONTROL_WORKERS, "-inf", time.time() - 60.0)


def workers() -> list[str]:
    """Return the control workers that have reported recently. Raise redis.RedisError."""
    found: Any = connect().zrangebyscore(redis_keys.CONTROL_WORKERS, time.time() - WORKER_DOWN_S, "+inf")
    return sorted(name.decode() for name in found)
