"""Once a second: claim the second, read what is live, build one frame, and hand it to everyone who looks.

Called by the control worker; by the web process where no worker does it. Who claims the second first builds it.
"""

import math
from typing import Any

import orjson
import redis

from controlplane.dashboard import frames, history
from router.contract import codec, redis_keys
from router.contract.pools import is_ephemeral

CLAIM_TTL_S = 5
OWN_FRAME_AFTER_S = 1.5  # no frame from the control worker for so long: a web process builds them
ROUTERS_REMEMBERED_S = 60  # a router that is gone is shown as gone for so long


def step(client: redis.Redis, now: float, built_by: str) -> bytes | None:
    """The frame's JSON; None when it is another process's turn or this second is claimed."""
    if built_by == "web" and _worker_builds(client, now):
        return None
    if built_by == "worker":
        client.set(redis_keys.FRAMES_CONTROL_AT, now)
    if not client.set(redis_keys.frame_claim_key(math.floor(now)), built_by, nx=True, ex=CLAIM_TTL_S):
        return None
    inputs, previous = read(client, now)
    frame = frames.build_frame(now, inputs, previous, built_by)
    text = encode(frame)
    publish(client, frame, text)
    return text


def _worker_builds(client: redis.Redis, now: float) -> bool:
    at = client.get(redis_keys.FRAMES_CONTROL_AT)
    return at is not None and now - float(at) < OWN_FRAME_AFTER_S


def encode(frame: dict[str, Any]) -> bytes:
    """orjson writes NaN and infinity as null, which is what an unknown figure is."""
    return orjson.dumps(frame)


def publish(client: redis.Redis, frame: dict[str, Any], text: bytes) -> None:
    with client.pipeline(transaction=False) as pipe:
        pipe.set(redis_keys.FRAMES_LATEST, text)
        pipe.xadd(
            redis_keys.FRAMES, {"f": orjson.dumps(history.row(frame))}, maxlen=redis_keys.FRAMES_KEPT, approximate=True
        )
        pipe.publish(redis_keys.FRAME, text)
        pipe.execute()


def latest(client: redis.Redis) -> dict[str, Any] | None:
    return codec.decode(client.get(redis_keys.FRAMES_LATEST))


def current(client: redis.Redis, now: float) -> dict[str, Any] | None:
    """The newest frame; built here and now when nobody has built one lately."""
    frame = latest(client)
    if frame is not None and now - frame["at"] <= OWN_FRAME_AFTER_S:
        return frame
    built = step(client, now, "web")
    if built is not None:
        return codec.decode(built)
    # Another process builds this second's frame. The very first may not be there yet: then one for this caller alone.
    return latest(client) or _unpublished(client, now)


def _unpublished(client: redis.Redis, now: float) -> dict[str, Any] | None:
    inputs, previous = read(client, now)
    return codec.decode(encode(frames.build_frame(now, inputs, previous, "web")))


def rows(client: redis.Redis, now: float, seconds: int) -> list[dict[str, Any]]:
    """The kept rows of the last `seconds`, oldest first."""
    since = int((now - seconds) * 1000)
    return [orjson.loads(fields[b"f"]) for _, fields in client.xrange(redis_keys.FRAMES, min=since) if b"f" in fields]


class Reader:
    """Decodes values and counts those that it cannot read."""

    def __init__(self) -> None:
        self.unreadable = 0

    def decode(self, raw: bytes | None) -> dict[str, Any] | None:
        value = codec.decode(raw)
        self.unreadable += raw is not None and value is None
        return value

    def by_name(self, names: list[str], raws: list[bytes | None]) -> dict[str, dict[str, Any]]:
        decoded = ((name, self.decode(raw)) for name, raw in zip(names, raws, strict=True))
        return {name: value for name, value in decoded if value is not None}


def read(client: redis.Redis, now: float) -> tuple[frames.Inputs, dict[str, Any] | None]:
    reader = Reader()
    with client.pipeline(transaction=False) as pipe:
        pipe.smembers(redis_keys.POOLS)
        pipe.zrangebyscore(redis_keys.ROUTERS, now - ROUTERS_REMEMBERED_S, "+inf")
        pipe.get(redis_keys.FRAMES_LATEST)
        pipe.get(redis_keys.FRAMES_CONTROL_AT)
        pipe.get(redis_keys.NODES)
        pipe.xrevrange(redis_keys.EVENTS, count=frames.EVENTS_SHOWN)
        raw_pools, raw_routers, previous, control_at, nodes, events = pipe.execute()
    pools, routers = sorted(map(bytes.decode, raw_pools)), list(map(bytes.decode, raw_routers))
    with client.pipeline(transaction=False) as pipe:
        for key_of in (redis_keys.fleet_key, redis_keys.policy_key, redis_keys.scaling_key):
            for pool in pools:
                pipe.get(key_of(pool))
        for router in routers:
            pipe.get(redis_keys.router_key(router))
        raws = pipe.execute()
    fleets = reader.by_name(pools, raws[: len(pools)])
    instances = [item["id"] for name, fleet in fleets.items() if not is_ephemeral(name) for item in fleet["instances"]]
    samples = client.mget([redis_keys.instance_key(name) for name in instances]) if instances else []
    inputs = frames.Inputs(
        fleets=fleets,
        samples=reader.by_name(instances, samples),
        routers=reader.by_name(routers, raws[3 * len(pools) :]),
        scaling=reader.by_name(pools, raws[2 * len(pools) : 3 * len(pools)]),
        policies=reader.by_name(pools, raws[len(pools) : 2 * len(pools)]),
        events=[event for _, fields in events if (event := _event(fields))],
        nodes=(reader.decode(nodes) or {}).get("nodes", ()),
        control_at=float(control_at) if control_at else None,
        unreadable=reader.unreadable,
    )
    return inputs, codec.decode(previous)


def _event(fields: dict[bytes, bytes]) -> dict[str, Any] | None:
    try:
        value = orjson.loads(fields[b"e"])
    except (KeyError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) and "at" in value else None
