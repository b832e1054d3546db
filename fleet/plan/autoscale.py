"""The number of instances that the load needs. Pure: computes advice, with its reason, from the load of the last
minutes. Scale up when every point within `up_after_s` needs more; down when every point within `down_after_s` needs
fewer. A step up at most doubles, a step down removes at most a quarter, and no step follows within `cooldown_s`. With
`min` 0, the last instances are removed after `idle_s` without a request, and a request that waits in a router brings
one back at once. With `prefill_max`, prefill and decode instances follow these rules separately, each by their own
load.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Literal

from msgspec import structs

from fleet.plan import balance
from fleet.spec.sections import Autoscale
from router.contract.redis.fleet_status import LoadPoint, SideLoad

EVERY_S = 5.0  # interval between two load points
TOLERANCE = 0.1  # share of a target within which nothing changes
SLO_NEAR = 0.7  # share of a limit above which no instance is removed
_COVERED = 0.8  # share of a time span that must be covered by load points
SMOOTHED = 2  # number of intervals between readings over which a side's work is averaged
_USABLE = {"prefill": 1.0, "decode": 0.8}  # largest share of the remaining side that its work may use
Side = Literal["prefill", "decode"]
Needs = Callable[[LoadPoint, Autoscale], "Advice"]


@dataclass(frozen=True, slots=True)
class Advice:
    replicas: int
    why: str
    prefills: int | None = None  # prefill replicas; None: not scaled separately


def advise_sides(
    points: Sequence[LoadPoint], spec: Autoscale, prefills: int, replicas: int, changed_at: float, now: float
) -> Advice:
    """Advise both sides. `prefills` of `replicas` are the current target. A side that needs more waits while `max`
    leaves no capacity."""
    decodes = replicas - prefills
    fewest = spec.prefill_min or 1
    most = max(fewest, min(spec.prefill_max or prefills, spec.max - decodes))
    prefill = _advise_side("prefill", points, replace(spec, min=fewest, max=most), prefills, changed_at, now)
    fewest = max(spec.decode_min or 1, spec.min - prefill.replicas)
    most = max(fewest, min(spec.decode_max or spec.max, spec.max - prefill.replicas))
    decode = _advise_side("decode", points, replace(spec, min=fewest, max=most), decodes, changed_at, now)
    why = prefill.why if prefill.why == decode.why else f"prefill: {prefill.why}; decode: {decode.why}"
    return Advice(prefill.replicas + decode.replicas, why, prefill.replicas)


def _advise_side(
    side: Side, points: Sequence[LoadPoint], spec: Autoscale, count: int, changed_at: float, now: float
) -> Advice:
    """Advise one side by the rules of a whole pool. KV usage counts only for decoders, because a prefill instance keeps
    KV only until it is pulled."""
    own = replace(spec, target_kv=None) if side == "prefill" else spec
    needs = partial(_needed_of_side, side)
    seen = [_of_side(side, point, own) for point in _smoothed(points)]
    return advise(seen, own, count, changed_at, now, needs)


def _smoothed(points: Sequence[LoadPoint]) -> Iterable[LoadPoint]:
    """Replace each point's work by the mean of the latest readings, because a single reading may coincide with a slot
    that is free between two requests."""
    for number, point in enumerate(points):
        recent = [one for one in points[: number + 1] if point.at - one.at <= SMOOTHED * EVERY_S]
        yield structs.replace(
            point, prefill=_mean(one.prefill for one in recent), decode=_mean(one.decode for one in recent)
        )


def _mean(sides: Iterable[SideLoad | None]) -> SideLoad | None:
    """Return the latest side, with its work from the mean busy share."""
    *_, last = found = list(sides)
    if last is None:
        return None
    shares = fmean(balance.busy(side) for side in found if side is not None)
    return structs.replace(last, work=shares * last.instances)


def advise(
    points: Sequence[LoadPoint],
    spec: Autoscale,
    replicas: int,
    changed_at: float,
    now: float,
    needs: Needs | None = None,
) -> Advice:
    """Advise the pool. `replicas` is the current target; `changed_at` is the Unix time of its last change."""
    needs = needs or needed
    inside = min(max(replicas, spec.min), spec.max)
    if inside != replicas:
        return Advice(inside, f"allowed: {spec.min} to {spec.max}")
    if not replicas:
        return _at_zero(points)
    if now - changed_at < spec.cooldown_s:
        return Advice(replicas, f"cooldown of {spec.cooldown_s:g} s after the last step")
    if spec.min == 0 and _is_idle(points, spec, now):
        return Advice(0, f"no request for {spec.idle_s:g} s")
    up = min(_needs_since(points, spec, now, spec.up_after_s, needs), key=_replicas, default=None)
    if up is None:
        return Advice(replicas, "not enough load data yet")
    if up.replicas > replicas:
        most = min(up.replicas, 2 * replicas, spec.max)
        return Advice(most, up.why if most > replicas else f"{up.why}; the maximum is {spec.max}")
    down = max(_needs_since(points, spec, now, spec.down_after_s, needs), key=_replicas, default=None)
    if down is not None and down.replicas < replicas:
        return _fewer(down, spec, replicas)
    return Advice(replicas, "the load fits the current size")


def _at_zero(points: Sequence[LoadPoint]) -> Advice:
    """Advise a pool at zero instances: waiting requests wake it."""
    held = points[-1].held if points else 0
    return Advice(1, f"{held} waiting for an instance") if held else Advice(0, "at zero: the next request wakes it")


def _is_idle(points: Sequence[LoadPoint], spec: Autoscale, now: float) -> bool:
    """Return whether instances were ready for all of `idle_s` without a request; a pool that has just woken is
    therefore not idle."""
    recent = [point for point in points if now - point.at <= spec.idle_s + EVERY_S]
    if not recent or now - recent[0].at < _COVERED * spec.idle_s:
        return False
    return all(point.ready and not _has_requests(point) for point in recent)


def _has_requests(point: LoadPoint) -> bool:
    return bool(point.running or point.waiting or point.held or point.answers_per_s)


def _fewer(down: Advice, spec: Autoscale, replicas: int) -> Advice:
    fewest = max(down.replicas, replicas - max(1, replicas // 4), spec.min)
    if fewest == replicas:
        return Advice(replicas, f"little load; the minimum is {spec.min}")
    return Advice(fewest, f"{max(1, down.replicas)} would have been enough for {spec.down_after_s:g} s")


def _needs_since(points: Sequence[LoadPoint], spec: Autoscale, now: float, span_s: float, needs: Needs) -> list[Advice]:
    """Return the need at each point of the last `span_s` seconds; empty if the points cover too little of them."""
    recent = [point for point in points if point.ready and now - point.at <= span_s + EVERY_S]
    if not recent or now - recent[0].at < _COVERED * span_s:
        return []
    return [needs(point, spec) for point in recent]


def _replicas(need: Advice) -> int:
    return need.replicas


def needed(point: LoadPoint, spec: Autoscale) -> Advice:
    """Return the highest need over all targets at one point."""
    needs = [*_by_queue(point, spec), *_by_kv(point, spec), *_by_slo(point, spec), *_by_balance(point)]
    return max(needs, key=_replicas, default=Advice(point.ready, "no measurement"))


def _of_side(side: Side, point: LoadPoint, spec: Autoscale) -> LoadPoint:
    """Return the point as if the side were the whole pool. Waiting requests and a missed TTFT appear on both sides, but
    count only for the busier one.
    """
    mine, other = (point.prefill, point.decode) if side == "prefill" else (point.decode, point.prefill)
    if mine is None or other is None:
        return structs.replace(point, ready=0)
    limits = spec.slo_ttft_p90_ms
    waiting, ttft = mine.waiting, point.ttft_p90_ms
    if balance.busy(mine) < balance.busy(other):
        waiting, ttft = 0.0, {name: min(value, limits.get(name, value)) for name, value in ttft.items()}
    return structs.replace(point, ready=mine.instances, waiting=waiting, kv=mine.kv, ttft_p90_ms=ttft)


def _needed_of_side(side: Side, point: LoadPoint, spec: Autoscale) -> Advice:
    mine = point.prefill if side == "prefill" else point.decode
    needs = [*_by_queue(point, spec), *_by_kv(point, spec), *_by_slo(point, spec), *_by_full(side, point)]
    if mine is not None:
        busy = min(mine.instances, math.ceil(mine.work / _USABLE[side]))
        needs.append(Advice(busy, f"{mine.work:.1f} of {mine.instances} are busy"))
    return max(needs, key=_replicas, default=Advice(point.ready, "no measurement"))


def _by_full(side: Side, point: LoadPoint) -> Iterable[Advice]:
    prefills, decodes = balance.prefills_for(point), balance.decoders_for(point)
    if side == "prefill" and prefills and point.decode is not None:
        best = f"{prefills}P{point.decode.instances}D"
        yield Advice(prefills, f"every prefill instance is full while decoders wait: {best} would be in balance")
    if side == "decode" and decodes and point.prefill is not None:
        best = f"{point.prefill.instances}P{decodes}D"
        yield Advice(decodes, f"every decoder is full while prefill waits: {best} would be in balance")


def saturation(point: LoadPoint, spec: Autoscale) -> float | None:
    """Return the load relative to its target: 1.0 is on target; None if nothing is measured."""
    if not point.ready:
        return None
    found = []
    if spec.target_queue is not None:
        found.append(point.waiting / point.ready / spec.target_queue)
    if spec.target_kv is not None and point.kv is not None:
        found.append(point.kv / spec.target_kv)
    found += [
        point.ttft_p90_ms[name] / limit for name, limit in spec.slo_ttft_p90_ms.items() if name in point.ttft_p90_ms
    ]
    return max(found, default=None)


def _by_queue(point: LoadPoint, spec: Autoscale) -> Iterable[Advice]:
    if spec.target_queue is not None:
        per = point.waiting / point.ready
        why = f"{per:.1f} requests wait per instance, the target is {spec.target_queue:g}"
        yield Advice(_scaled(point.ready, per / spec.target_queue), why)


def _by_kv(point: LoadPoint, spec: Autoscale) -> Iterable[Advice]:
    if spec.target_kv is not None and point.kv is not None:
        why = f"KV usage is {point.kv * 100:.0f} %, the target is {spec.target_kv * 100:g} %"
        yield Advice(_scaled(point.ready, point.kv / spec.target_kv), why)


def _by_balance(point: LoadPoint) -> Iterable[Advice]:
    """Advise more decoders, and thus a larger pool, if prefill instances could supply them."""
    prefills = point.prefill.instances if point.prefill is not None else 0
    for full in _by_full("decode", point):
        yield replace(full, replicas=max(point.ready, prefills + full.replicas))


def _scaled(ready: int, ratio: float) -> int:
    return ready if abs(ratio - 1) <= TOLERANCE else max(1, math.ceil(ready * ratio))


def _by_slo(point: LoadPoint, spec: Autoscale) -> Iterable[Advice]:
    for name, limit in spec.slo_ttft_p90_ms.items():
        measured = point.ttft_p90_ms.get(name)
        if measured is None:
            continue
        why = f"TTFT p90 of {name} requests is {measured:.0f} ms, the limit is {limit:g} ms"
        if measured > limit:
            yield Advice(point.ready + max(1, point.ready // 4), why)
        else:
            yield Advice(point.ready if measured > SLO_NEAR * limit else 1, why)
