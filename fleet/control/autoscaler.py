"""The autoscaler's step: record the load of each autoscaled pool in Redis, then advise or scale."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

import redis

from fleet import events
from fleet.models import Instance, Pool, State
from fleet.plan.autoscale import EVERY_S, Advice, LoadPoint, advise
from fleet.redis import connect
from fleet.snapshot import samples_of, scale_of
from fleet.spec.sections import Autoscale, autoscale_of
from router.contract import codec, redis_keys, sketch, staleness

TTL_S = 120


def scale_step(now: dt.datetime) -> dict[str, Advice]:
    """The advice by pool; automatic mode also applies it."""
    pools = Pool.objects.filter(removed=False).exclude(autoscale={})
    return {pool.name: _scale(pool, autoscale_of(pool.autoscale), now) for pool in pools}


def _scale(pool: Pool, spec: Autoscale, now: dt.datetime) -> Advice:
    client, key, at = connect(), redis_keys.scaling_key(pool.name), now.timestamp()
    known = codec.decode(client.get(key)) or {"points": [], "changed_at": 0.0, "replicas": None}
    keep_s = max(spec.up_after_s, spec.down_after_s) + 2 * EVERY_S
    points = [LoadPoint(**point) for point in known["points"] if at - point["at"] <= keep_s] + [look(client, pool, at)]
    replicas = scale_of(pool, now).replicas
    changed_at = known["changed_at"] if known["replicas"] in (None, replicas) else at
    advice = advise(points, spec, replicas, changed_at, at)
    value = {"pool": pool.name, "at": at, "changed_at": changed_at, "replicas": replicas, "mode": spec.mode}
    value |= {"advised": advice.replicas, "why": advice.why, "points": [asdict(point) for point in points]}
    client.set(key, codec.encode(value), ex=TTL_S + round(keep_s))
    if spec.mode == "automatic" and advice.replicas != replicas:
        _follow(pool, advice, replicas)
    return advice


def _follow(pool: Pool, advice: Advice, replicas: int) -> None:
    if Pool.objects.filter(pk=pool.pk, scaled=pool.scaled).update(scaled=advice.replicas):
        text = f"scaled from {replicas} to {advice.replicas}"
        events.record_pool(pool, "scale", text, "autoscaler", advice.why)


def look(client: redis.Redis, pool: Pool, at: float) -> LoadPoint:
    ready = list(Instance.objects.filter(pool=pool, state=State.READY, retired="").select_related("pool"))
    fresh = [sample for sample in samples_of(ready).values() if at - sample["at"] <= staleness.SAMPLE_OFFLINE_S]
    kv = [sample["kv_usage"] for sample in fresh if sample["kv_usage"] is not None]
    return LoadPoint(
        at=at,
        ready=len(ready),
        running=sum(sample["running"] or 0 for sample in fresh),
        waiting=sum(sample["waiting"] or 0 for sample in fresh),
        kv=sum(kv) / len(kv) if kv else None,
        ttft_p90_ms=_ttft(client, pool.name, at),
    )


def _ttft(client: redis.Redis, pool: str, at: float) -> dict[str, float]:
    """By class, over all routers and the last minute."""
    alive = cast("list[bytes]", client.zrangebyscore(redis_keys.ROUTERS, at - staleness.ROUTER_GONE_S, "+inf"))
    names = [name.decode() for name in alive]
    states = (
        [codec.decode(raw) for raw in client.mget([redis_keys.router_key(name) for name in names])] if names else []
    )
    windows: dict[str, list[Mapping[str, int]]] = {}
    for state in states:
        for name, window in ((state or {}).get("classes", {}).get(pool) or {}).items():
            windows.setdefault(name, []).append((window or {}).get("ttft") or {})
    found = {name: sketch.quantile(sketch.merge(seen), 0.9) for name, seen in windows.items()}
    return {name: value for name, value in found.items() if value is not None}


def latest(pool_names: list[str]) -> dict[str, dict[str, Any]]:
    """The latest advice by pool; empty without Redis."""
    if not pool_names:
        return {}
    try:
        raws = connect().mget([redis_keys.scaling_key(name) for name in pool_names])
    except redis.RedisError:
        return {}
    read = {name: codec.decode(raw) for name, raw in zip(pool_names, raws, strict=True)}
    return {name: value for name, value in read.items() if value is not None}
