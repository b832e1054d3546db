"""Plays the autoscaler's rules for both sides while traffic changes: each side grows when it holds up the other, and
releases what its load does not need."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from controlplane.evidence.systems import neuron_play as play
from controlplane.evidence.twin.simulation.types import TwinOutcome
from fleet.plan.balance import MeasuredInstance, decoders_for, prefills_for, sides
from router.contract.redis.fleet_status import LoadPoint, SideLoad

TRAFFIC = ("as given", "prompts doubled", "answers doubled, too")
USABLE = 0.8  # share of a side that may be in use
REQUESTS = 120  # requests per reading
MOST_STEPS, MOST_WORKERS = 4, 16  # steps per kind of traffic; workers per side


@dataclass(frozen=True, slots=True)
class Reading:
    """Workers under one kind of traffic, and the advice of the rules."""

    traffic: str
    prefills: int
    decodes: int
    point: LoadPoint
    ttft_ms: float  # p90
    advised: tuple[int, int] | None  # prefill and decode workers; None to keep the current ones

    @property
    def prefill_busy(self) -> float:
        """The busy share of the prefill workers, 0–1."""
        return _busy(self.point.prefill)

    @property
    def decode_busy(self) -> float:
        return _busy(self.point.decode)


def _busy(side: SideLoad | None) -> float:
    return side.work / side.instances if side is not None else 0.0


def readings(setup: play.Setup, rate: float) -> Iterator[Reading]:
    """Play from 1P1D on: the given traffic, then prompts of twice the length, then answers of twice the length, too."""
    workers = 1, 1
    longer = setup.doubled()
    setups = setup, longer, longer.answering_twice_as_long()
    for traffic, asked in zip(TRAFFIC, setups, strict=True):
        for _ in range(MOST_STEPS):
            reading = _reading(traffic, asked, rate, *workers)
            yield reading
            if reading.advised is None:
                break
            workers = reading.advised


def _reading(traffic: str, setup: play.Setup, rate: float, prefills: int, decodes: int) -> Reading:
    outcome = play.open_run(setup, play.pairs(setup, prefills, decodes), rate, REQUESTS)
    point = _point(setup, outcome)
    advised = (
        _sized(point.prefill, prefills_for(point), rate / point.answers_per_s),
        _sized(point.decode, decoders_for(point), rate / point.answers_per_s),
    )
    ttft_ms = play.p90([one.ttft_s * 1e3 for one in play.steady(outcome) if one.ttft_s is not None])
    return Reading(traffic, prefills, decodes, point, ttft_ms, None if advised == (prefills, decodes) else advised)


def _sized(side: SideLoad | None, in_balance: int, offered: float) -> int:
    """Return the workers of a side: up to the balance while it is full, one fewer with capacity to spare, and both as
    far as the load needs. `offered`: requests for each that is answered."""
    assert side is not None  # noqa: S101 - narrows the type: there are workers of both roles
    needed = min(ceil(round(offered * side.work / USABLE, 2)), MOST_WORKERS)
    if in_balance > side.instances:
        return max(side.instances, min(in_balance, needed))
    return max(side.instances - 1, needed, 1) if needed < side.instances else side.instances


def _point(setup: play.Setup, outcome: TwinOutcome) -> LoadPoint:
    """Return the load while requests come, without the first quarter; a second is a worker's reporting interval."""
    last = int(outcome.requests[-1].sent_s)
    seconds = range(last // 4, max(last, last // 4 + 1))
    found = [_sides(setup, outcome, second) for second in seconds]
    prefill, decode = (
        SideLoad(instances=side[0].instances, work=sum(one.work for one in side) / len(side))
        for side in zip(*found, strict=True)
    )
    return LoadPoint(
        at=0.0,
        ready=prefill.instances + decode.instances,
        running=0,
        waiting=0,
        answers_per_s=play.answers_per_s(outcome),
        prefill=prefill,
        decode=decode,
    )


def _sides(setup: play.Setup, outcome: TwinOutcome, second: int) -> tuple[SideLoad, SideLoad]:
    batch = {"prefill": setup.prefill_batch, "decode": setup.decode_batch}
    found = sides(
        MeasuredInstance(role, use.running[second], use.kv_usage[second], batch[role])
        for role in batch
        for use in play.of_role(outcome, role)
    )
    assert found is not None  # noqa: S101 - narrows the type: there are workers of both roles
    return found
