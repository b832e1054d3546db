"""The one place that writes a policy to Redis. The database is the truth; this is how routers hear of it."""

import time
from typing import Any

from fleet.redis import connect
from router.contract import codec, redis_keys


def put(pool: str, policy_name: str, version: int, document: dict[str, Any], sha256: str) -> None:
    """Let routers serve `pool` by this document from now on; raises redis.RedisError when Redis is away."""
    value = {
        "pool": pool,
        "policy": policy_name,
        "version": version,
        "sha256": sha256,
        "document": document,
        "rollout": {"mode": "full"},
        "published_at": time.time(),
    }
    with connect().pipeline(transaction=True) as pipe:
        pipe.sadd(redis_keys.POOLS, pool)
        pipe.set(redis_keys.policy_key(pool), codec.encode(value))
        pipe.publish(redis_keys.CHANGED, redis_keys.policy_key(pool))
        pipe.execute()


def remove(pool: str) -> None:
    """Routers serve `pool` no longer."""
    with connect().pipeline(transaction=True) as pipe:
        pipe.srem(redis_keys.POOLS, pool)
        pipe.delete(redis_keys.policy_key(pool))
        pipe.publish(redis_keys.CHANGED, redis_keys.policy_key(pool))
        pipe.execute()


def pools() -> set[str]:
    """The pools that routers serve, as Redis has them."""
    names: Any = connect().smembers(redis_keys.POOLS)
    return {name.decode() for name in names}


def published(pools: list[str]) -> dict[str, dict[str, Any] | None]:
    """What Redis holds for each pool; None where there is nothing readable."""
    if not pools:
        return {}
    raw = connect().mget([redis_keys.policy_key(pool) for pool in pools])
    return {pool: codec.decode(value) for pool, value in zip(pools, raw, strict=True)}  # type: ignore[arg-type]
