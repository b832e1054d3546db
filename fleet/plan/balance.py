"""The measured balance of work between the prefill and decode instances of a pool. Pure.
Work is counted in instances: an instance that computes prompts half of the time does 0.5, and so does a decoder with
half of its slots (or of its KV blocks) in use. At λ answers per second, each prefill instance could do μ_p = λ / work
of the prefill side, and each decoder μ_d = λ / work of the decode side; x : y = μ_d : μ_p is balanced.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from fleet.systems.neuron import Balance, balanced
from router.contract.redis.fleet_status import LoadPoint, SideLoad

SATURATED = 0.95  # share of a side that counts as full
TOLERANCE = 0.1  # share by which a side may be smaller than the balance
LEAST_WORK = 0.05  # work per side, in instances, below which the rate is unknown


@dataclass(frozen=True, slots=True)
class MeasuredInstance:
    role: str
    running: float
    kv: float  # KV use, 0–1
    slots: int | None  # sequences at once; None: unknown
    waiting: float = 0.0


def sides(instances: Iterable[MeasuredInstance]) -> tuple[SideLoad, SideLoad] | None:
    """Return the prefill and decode sides; None unless the pool has both."""
    found = list(instances)
    prefills = [one for one in found if one.role == "prefill"]
    decodes = [one for one in found if one.role == "decode"]
    if not prefills or not decodes:
        return None
    return _load(prefills, lambda one: min(one.running, 1.0)), _load(decodes, _used)


def _load(side: Sequence[MeasuredInstance], work: Callable[[MeasuredInstance], float]) -> SideLoad:
    return SideLoad(
        instances=len(side),
        work=sum(map(work, side)),
        waiting=sum(one.waiting for one in side),
        kv=fmean(one.kv for one in side),
    )


def _used(decoder: MeasuredInstance) -> float:
    slots = decoder.running / decoder.slots if decoder.slots else 0.0
    return min(max(slots, decoder.kv), 1.0)


def measured(points: Sequence[LoadPoint]) -> Balance | None:
    """Return the balance of the present instances by their mean work at these points; None if there is too little
    work."""
    known = [point for point in points if point.prefill is not None and point.decode is not None]
    if not known:
        return None
    prefill_work, decode_work = (
        fmean(side.work for point in known if (side := getattr(point, name)) is not None)
        for name in ("prefill", "decode")
    )
    rate = fmean(point.answers_per_s for point in known)
    last = known[-1]
    if min(prefill_work, decode_work) < LEAST_WORK or not rate or last.prefill is None or last.decode is None:
        return None
    return Balance(rate / prefill_work, rate / decode_work, last.prefill.instances, last.decode.instances)


def busy(side: SideLoad) -> float:
    """Return the busy share of a side, 0–1."""
    return side.work / side.instances


def is_full(side: SideLoad) -> bool:
    return busy(side) >= SATURATED


def decoders_for(point: LoadPoint) -> int:
    """Return how many decoders the prefill side could keep busy; 0 unless all present decoders are busy and prefill
    is not."""
    return _for(point.decode, point.prefill)


def prefills_for(point: LoadPoint) -> int:
    """Return how many prefill instances could keep the decoders busy; 0 unless all present prefill instances are
    busy and decoders wait."""
    return _for(point.prefill, point.decode)


def _for(full: SideLoad | None, waiting: SideLoad | None) -> int:
    """Return the number of instances for the full side, rounded; up to a tenth too few counts as balanced, as work
    is sampled."""
    if full is None or waiting is None or waiting.work < LEAST_WORK:
        return 0
    if not is_full(full) or is_full(waiting):
        return 0
    return ceil((1 - TOLERANCE) * waiting.instances * full.work / waiting.work)


def described(now: Balance, last: LoadPoint | None = None) -> str:
    """Describe both rates and the balance in a sentence, with the number of prefill instances that the document
    should have if the present ones hold up the decoders."""
    best = balanced(now.prefill_rate, now.decode_rate)
    split = now.split(now.prefills + now.decodes)
    here = f"{now.prefills}P{now.decodes}D"
    rates = (
        f"a prefill instance can do {now.prefill_rate:.3g} prompts a second, a decoder {now.decode_rate:.3g} answers"
    )
    text = f"{rates}: {best.prefills}P{best.decodes}D is in balance, {here} serves {now.rate:.3g} a second at most"
    if split is not None and split.rate > 1.05 * now.rate:
        text += (
            f"; prefill_instances: {split.prefills} of {split.prefills + split.decodes} would serve {split.rate:.3g}"
        )
    more = prefills_for(last) if last is not None else 0
    if more > now.prefills:
        text += f"; every prefill instance is full while decoders wait: {more}P{now.decodes}D would be in balance"
    return text
