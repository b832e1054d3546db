"""How many instances the load asks for. Pure: the figures of the last minutes in, an advice with its reason out.

Up when every figure of `up_after_s` asks for more; down when no figure of `down_after_s` asks for as many as there
are. A step up at most doubles, a step down takes at most a quarter, and after a step nothing is done for `cooldown_s`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.spec.sections import Autoscale

EVERY_S = 5.0  # between two looks
TOLERANCE = 0.1  # of a target: so near to it nothing changes
SLO_NEAR = 0.7  # of a limit: from here on nothing is taken away
_COVERED = 0.8  # of a time span that figures must exist for


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One look at a pool."""

    at: float  # Unix seconds
    ready: int  # instances
    running: float  # requests
    waiting: float  # requests
    kv: float | None = None  # 0–1, mean over the instances
    ttft_p90_ms: Mapping[str, float] = field(default_factory=dict)  # by class, over the last minute


@dataclass(frozen=True, slots=True)
class Advice:
    replicas: int
    why: str

    def changes(self, replicas: int) -> bool:
        return self.replicas != replicas


@dataclass(frozen=True, slots=True)
class _Need:
    replicas: int
    why: str


def advise(points: Sequence[LoadPoint], spec: Autoscale, replicas: int, changed_at: float, now: float) -> Advice:
    """`replicas`: that there should be now; `changed_at`: when that number last changed, Unix seconds."""
    inside = min(max(replicas, spec.min), spec.max)
    if inside != replicas:
        return Advice(inside, f"allowed are {spec.min} to {spec.max}")
    if now - changed_at < spec.cooldown_s:
        return Advice(replicas, f"a pause of {spec.cooldown_s:g} s after the last step")
    up = _least(_needs_since(points, spec, now, spec.up_after_s))
    if up is None:
        return Advice(replicas, "there are not enough figures yet")
    if up.replicas > replicas:
        most = min(up.replicas, 2 * replicas, spec.max)
        return Advice(most, up.why if most > replicas else f"{up.why}; {spec.max} is the most")
    down = _most(_needs_since(points, spec, now, spec.down_after_s))
    if down is not None and down.replicas < replicas:
        return _fewer(down, spec, replicas)
    return Advice(replicas, "the load is what they are for")


def _fewer(down: _Need, spec: Autoscale, replicas: int) -> Advice:
    fewest = max(down.replicas, replicas - max(1, replicas // 4), spec.min)
    if fewest == replicas:
        return Advice(replicas, f"little load; {spec.min} is the fewest")
    return Advice(fewest, f"for {spec.down_after_s:g} s {max(1, down.replicas)} would have been enough")


def _needs_since(points: Sequence[LoadPoint], spec: Autoscale, now: float, span_s: float) -> list[_Need]:
    """What each look of the last `span_s` seconds asked for; empty when they are too few to tell."""
    recent = [point for point in points if point.ready and now - point.at <= span_s + EVERY_S]
    if not recent or now - recent[0].at < _COVERED * span_s:
        return []
    return [needed(point, spec) for point in recent]


def _least(found: Iterable[_Need]) -> _Need | None:
    return min(found, key=lambda one: one.replicas, default=None)


def _most(found: Iterable[_Need]) -> _Need | None:
    return max(found, key=lambda one: one.replicas, default=None)


def needed(point: LoadPoint, spec: Autoscale) -> _Need:
    """What one look at ready instances asks for: the most of what its targets ask for."""
    found = [*_by_queue(point, spec), *_by_kv(point, spec), *_by_slo(point, spec)]
    return max(found, key=lambda one: one.replicas, default=_Need(point.ready, "nothing is measured"))


def _by_queue(point: LoadPoint, spec: Autoscale) -> Iterable[_Need]:
    if spec.target_queue is not None:
        per = point.waiting / point.ready
        why = f"{per:.1f} requests wait per instance, the target is {spec.target_queue:g}"
        yield _Need(_scaled(point.ready, per / spec.target_queue), why)


def _by_kv(point: LoadPoint, spec: Autoscale) -> Iterable[_Need]:
    if spec.target_kv is not None and point.kv is not None:
        why = f"KV use is {point.kv * 100:.0f} %, the target is {spec.target_kv * 100:g} %"
        yield _Need(_scaled(point.ready, point.kv / spec.target_kv), why)


def _scaled(ready: int, ratio: float) -> int:
    return ready if abs(ratio - 1) <= TOLERANCE else max(1, math.ceil(ready * ratio))


def _by_slo(point: LoadPoint, spec: Autoscale) -> Iterable[_Need]:
    for name, limit in spec.slo_ttft_p90_ms.items():
        measured = point.ttft_p90_ms.get(name)
        if measured is None:
            continue
        why = f"TTFT p90 of {name} requests is {measured:.0f} ms, the limit is {limit:g} ms"
        if measured > limit:
            yield _Need(point.ready + max(1, point.ready // 4), why)
        else:
            yield _Need(point.ready if measured > SLO_NEAR * limit else 1, why)
