"""Values that the control plane publishes for a delivery, for tests."""

import json
import time
from typing import Any

import redis

from router.contract.redis import redis_keys
from router.policy.schema import document
from router.pool.rollout import hashed, is_candidate
from router.serving.prompt.sessions import session_key
from router.tests.conftest import World
from router.tests.values import stored

SALT = "5f2b"
DELIVERY = 7
CANDIDATE = 44


def watch(client: redis.Redis, ttl_s: float = 30.0, *, delivery: int = DELIVERY, pool: str = "demo") -> None:
    value = stored({"delivery": delivery, "generation": 1})
    client.set(redis_keys.watch_key(pool), value, px=int(ttl_s * 1000))


def put(client: redis.Redis, rollout: dict[str, Any], *, version: int = 42, strategy: str = "round_robin") -> None:
    made = document.default(strategy)
    value = {
        "pool": "demo",
        "policy": "default",
        "version": version,
        "sha256": document.sha256(made),
        "document": made,
        "rollout": rollout,
        "published_at": time.time(),
    }
    client.set(redis_keys.policy_key("demo"), stored(value))
    client.publish(redis_keys.CHANGED, redis_keys.policy_key("demo"))


def rollout(generation: int, share: float, **changes: Any) -> dict[str, Any]:
    made = document.apply_overrides(document.default("lpwl"), changes.pop("overrides", {}))
    candidate = {"version": CANDIDATE, "sha256": document.sha256(made), "document": made}
    return {
        "mode": "split",
        "delivery": DELIVERY,
        "generation": generation,
        "salt": SALT,
        "share": share,
        "candidate": candidate,
        **changes,
    }


async def split(w: World, share: float, *, generation: int = 1, **changes: Any) -> None:
    """Publish a watched split and wait until the router has joined it."""
    watch(w.published.client)
    put(w.published.client, rollout(generation, share, **changes))
    await joined(w, generation)


async def joined(w: World, generation: int) -> None:
    pool = w.router.pools.get("demo")
    await w.until(lambda: state(w) == "on" and pool.generation == generation, "the split is on")


def state(w: World) -> str:
    found = w.router.pools.get("demo").split
    return found.state(time.perf_counter()) if found is not None else ""


def arm_of(session: str, share: float) -> str:
    return "candidate" if is_candidate(hashed(SALT, session_key("demo", session)), share) else "control"


def tallies(client: redis.Redis, delivery: int = DELIVERY) -> list[dict[str, Any]]:
    """Return the tallies of all routers and incarnations."""
    return [json.loads(raw) for raw in client.hgetall(redis_keys.delivery_key(delivery)).values()]
