"""The autoscaler's step: records the load of each autoscaled pool in Redis, then advises or scales."""

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import cast

import redis
from django.db import transaction

from fleet import events, services
from fleet.kinds.serving import BOTH
from fleet.models import DesiredState, Instance, InstanceEvent, Pool, State
from fleet.plan.autoscale import EVERY_S, Advice, advise, advise_sides, saturation
from fleet.plan.balance import MeasuredInstance, described, measured, sides
from fleet.redis import connect, values_of
from fleet.snapshot import samples_of, scale_of
from fleet.spec.sections import Autoscale, autoscale_of
from fleet.tries import tries
from router.contract.redis import codec, redis_keys
from router.contract.redis.fleet_status import LoadPoint, ScalingAdvice
from router.contract.redis.router_status import WINDOW_S, RouterStatus
from router.contract.redis.sample import InstanceSample, queued
from router.contract.redis.staleness import ROUTER_GONE_S, is_recent
from router.contract.values.sketch import Sketch, merge, quantile

TTL_S = 120


def scale_step(now: dt.datetime) -> dict[str, Advice]:
    """Record the load of each pool. Return the advice by pool, which automatic mode also applies."""
    pools = Pool.objects.filter(removed=False).exclude(autoscale={})
    found = {}
    with tries() as attempt:
        for pool in pools:
            with attempt(f"pool {pool.name}"):
                found[pool.name] = _scale(pool, autoscale_of(pool.autoscale), now)
    return found


def wake_step(now: dt.datetime) -> bool:
    """Check pools at zero instances more often than others. Return True if one of them is woken."""
    woken = False
    with tries() as attempt:
        for pool in Pool.objects.filter(removed=False).exclude(autoscale={}):
            with attempt(f"pool {pool.name}"):
                spec = autoscale_of(pool.autoscale)
                at_zero = spec.mode == "automatic" and (pool.scaled == 0 or _sleeps(pool, spec))
                woken |= at_zero and _scale(pool, spec, now).replicas > 0
    return woken


def _scale(pool: Pool, spec: Autoscale, now: dt.datetime) -> Advice:
    client, key, at = connect(), redis_keys.scaling_key(pool.name), now.timestamp()
    known = codec.decode(ScalingAdvice, client.get(key))
    keep_s = max(spec.up_after_s, spec.down_after_s, 0 if spec.min else spec.idle_s) + 2 * EVERY_S
    points = [point for point in (known.points if known else ()) if at - point.at <= keep_s]
    scale = scale_of(pool, now)
    replicas, prefills = 0 if _sleeps(pool, spec) else scale.replicas, scale.prefills
    points.append(look(client, pool, at, held_since=0.0 if replicas else _last_taken_out(pool)))
    changed = known is not None and (known.replicas, known.prefills) != (replicas, prefills)
    changed_at = at if changed else known.changed_at if known else 0.0
    if prefills is None:
        advice = advise(points, spec, replicas, changed_at, at)
    else:
        advice = advise_sides(points, spec, prefills, replicas, changed_at, at)
    value = ScalingAdvice(
        pool=pool.name,
        at=at,
        changed_at=changed_at,
        replicas=replicas,
        mode=spec.mode,
        advised=advice.replicas,
        why=advice.why,
        prefills=prefills,
        advised_prefills=advice.prefills,
        saturation=saturation(points[-1], spec),
        balance=described(balance, points[-1]) if (balance := measured(points)) else "",
        points=tuple(points),
    )
    client.set(key, codec.encode(value), ex=TTL_S + round(keep_s))
    if spec.mode == "automatic" and (advice.replicas, advice.prefills) != (replicas, prefills):
        if spec.to_zero == "sleep" and pool.scaled != 0 and not (replicas and advice.replicas):
            _sleep_or_wake(pool, advice, replicas)
        else:
            _follow(pool, advice, value)
    return advice


def _sleeps(pool: Pool, spec: Autoscale) -> bool:
    """Return whether the pool sleeps: all its instances do, except those that an operator has stopped or drained."""
    if spec.min or spec.to_zero != "sleep":
        return False
    desired = set(pool.instances.filter(retired="").values_list("desired", flat=True))
    return DesiredState.ASLEEP in desired and DesiredState.RUNNING not in desired


def _sleep_or_wake(pool: Pool, advice: Advice, replicas: int) -> None:
    """Put all instances of the pool to sleep, or wake them all; they keep their GPUs."""
    if advice.replicas:
        rows, verb = pool.instances.filter(retired="", desired=DesiredState.ASLEEP), services.wake
    else:
        rows, verb = pool.instances.filter(retired="", desired=DesiredState.RUNNING), services.sleep
    with transaction.atomic():
        for name in rows.order_by("ordinal").values_list("name", flat=True):
            verb(name, "autoscaler", advice.why)
    text = "woken" if advice.replicas else f"put to sleep, {replicas} of {replicas}"
    events.record_pool(pool, "scale", text, "autoscaler", advice.why)


def _follow(pool: Pool, advice: Advice, said: ScalingAdvice) -> None:
    before = Pool.objects.filter(pk=pool.pk, scaled=pool.scaled, scaled_prefills=pool.scaled_prefills)
    if before.update(scaled=advice.replicas, scaled_prefills=advice.prefills):
        text = f"scaled from {said.size} to {said.advised_size}"
        events.record_pool(pool, "scale", text, "autoscaler", advice.why)


def _last_taken_out(pool: Pool) -> float:
    """Return the Unix time when the pool or one of its instances was last taken out of service. Requests that waited
    before then may have been answered, so they must not wake the pool again."""
    events_of = InstanceEvent.objects.filter(pool=pool.name, kind__in=("scale", "sleep", "stop", "drain"))
    last = events_of.values_list("at", flat=True).first()
    return last.timestamp() if last else 0.0


def look(client: redis.Redis, pool: Pool, at: float, held_since: float = 0.0) -> LoadPoint:
    """Read the pool's load. Waiting requests in the routers' reports count from `held_since` (Unix time)."""
    ready = list(Instance.objects.filter(pool=pool, state=State.READY, retired="").select_related("pool"))
    samples = {name: sample for name, sample in samples_of(ready).items() if is_recent(at - sample.at)}
    answers_per_s, ttft, held = _of_routers(client, pool.name, at, held_since)
    prefill, decode = sides(_of_roles(ready, samples)) or (None, None)
    fresh = samples.values()
    kv = [sample.kv_usage for sample in fresh if sample.kv_usage is not None]
    return LoadPoint(
        at=at,
        ready=len(ready),
        running=sum((sample.running or 0) + (sample.deferred or 0) for sample in fresh),
        waiting=sum(map(queued, fresh)),
        kv=sum(kv) / len(kv) if kv else None,
        ttft_p90_ms=ttft,
        answers_per_s=answers_per_s,
        held=held,
        prefill=prefill,
        decode=decode,
    )


def _of_roles(rows: Iterable[Instance], samples: Mapping[str, InstanceSample]) -> list[MeasuredInstance]:
    return [
        MeasuredInstance(row.facts.role, sample.running or 0, sample.kv_usage or 0.0, _slots(row), queued(sample))
        for row in rows
        if row.facts.role != BOTH and (sample := samples.get(row.name))
    ]


def _slots(row: Instance) -> int | None:
    """Return the number of sequences that a decoder runs at once."""
    given = row.started_from
    slots = getattr(given.options(), "max_num_seqs", None) if given.known_kind else None
    return slots if isinstance(slots, int) else None


def _of_routers(client: redis.Redis, pool: str, at: float, held_since: float) -> tuple[float, dict[str, float], int]:
    """Return the routers' totals over the last minute: answers per second, TTFT p90 in ms by class, waiting
    requests."""
    alive = cast("list[bytes]", client.zrangebyscore(redis_keys.ROUTERS, at - ROUTER_GONE_S, "+inf"))
    names = [name.decode() for name in alive]
    sketches: dict[str, list[Sketch]] = {}
    answers = held = 0
    for router in values_of(RouterStatus, redis_keys.router_key, names).values():
        if router.at >= held_since:
            held += sum(router.queued.get(pool, {}).values())
        for name, window in router.classes.get(pool, {}).items():
            sketches.setdefault(name, []).append(window.ttft)
            answers += window.ok
    p90 = {name: quantile(merge(parts), 0.9) for name, parts in sketches.items()}
    return answers / WINDOW_S, {name: value for name, value in p90.items() if value is not None}, held


def latest(pool_names: list[str]) -> dict[str, ScalingAdvice]:
    """Return the latest advice by pool; empty without Redis."""
    try:
        return values_of(ScalingAdvice, redis_keys.scaling_key, pool_names)
    except redis.RedisError:
        return {}
