"""Simulates Neuron's serving in the twin: prefill and decode workers, or instances that do both."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean, quantiles

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.types import Simulated, SimulatedUse, TwinFleet, TwinOutcome
from fleet.engine.engine_model import EngineModel, Role, TransferLink, TransferModel
from fleet.engine.law import Law
from fleet.engine.neuron_batches import BATCHING_OF_ROLE
from fleet.engine.scheduler import Limits
from fleet.plan.balance import MeasuredInstance, decoders_for, prefills_for, sides
from fleet.systems.neuron import Workload
from router.contract.redis.fleet_status import LoadPoint, SideLoad
from router.policy.schema import document

BLOCK = 512  # block size of the trace
REQUESTS = 120  # requests per open run or reading
CHUNK = 2_048  # tokens per step if prompts are computed in chunks


@dataclass(frozen=True, slots=True)
class Setup:
    prefill_law: Law
    decode_law: Law
    work: Workload
    prefill_batch: int
    decode_batch: int
    bytes_per_token: float
    link: TransferLink
    poll_s: float = 1e-3

    def doubled(self) -> "Setup":
        """Return the setup with prompts of twice the length."""
        return replace(self, work=replace(self.work, prompt_tokens=2 * self.work.prompt_tokens))

    def answering_twice_as_long(self) -> "Setup":
        return replace(self, work=replace(self.work, output_tokens=2 * self.work.output_tokens))


def pairs(setup: Setup, prefills: int, decodes: int) -> TwinFleet:
    sides: tuple[tuple[Role, int], ...] = ("prefill", prefills), ("decode", decodes)
    workers = {role: _worker(setup, role) for role, _ in sides}
    return TwinFleet({f"{role}-{number}": workers[role] for role, count in sides for number in range(count)})


def both(setup: Setup, instances: int, batching: str = BATCHING_OF_ROLE["both"]) -> TwinFleet:
    """Return instances that prefill and decode: whole prompts first, or with the batching of other engines."""
    return TwinFleet({f"both-{number}": _worker(setup, "both", batching) for number in range(instances)})


def _worker(setup: Setup, role: Role, batching: str = "") -> EngineModel:
    batch = setup.prefill_batch if role == "prefill" else setup.decode_batch
    tokens = setup.work.prompt_tokens + setup.work.output_tokens
    moves = TransferModel(
        bytes_per_token=setup.bytes_per_token,
        setup_s=setup.link.setup_s,
        idle_bytes_per_s=setup.link.idle_bytes_per_s,
        busy_bytes_per_s=setup.link.busy_bytes_per_s,
        hold_s=1e9,
        together=True,
        poll_s=setup.poll_s,
    )
    return EngineModel(
        law=setup.prefill_law if role == "prefill" else setup.decode_law,
        kv_blocks=(batch + 1) * (tokens // BLOCK + 2),  # Neuron reserves the full length of every sequence
        limits=Limits(BLOCK, batch, CHUNK, batching or BATCHING_OF_ROLE[role], async_scheduling=False),
        role=role,
        connector="" if role == "both" else "neuron",
        transfers=None if role == "both" else moves,
    )


def open_run(setup: Setup, fleet: TwinFleet, rate: float, requests: int = REQUESTS) -> TwinOutcome:
    """Play requests at random intervals, which are the same in every run."""
    draw, at_s, sent = random.Random(SEED), 0.0, []  # noqa: S311 - a simulation
    for number in range(requests):
        sent.append(_request(setup, number, at_s, setup.work.output_tokens))
        at_s += draw.expovariate(rate)
    return _play(fleet, sent, "timestamps")


def steady(outcome: TwinOutcome) -> Sequence[Simulated]:
    """Return the requests without the first quarter, during which the workers are not yet fully loaded."""
    return outcome.requests[len(outcome.requests) // 4 :]


def closed_run(setup: Setup, fleet: TwinFleet, clients: int) -> Sequence[Simulated]:
    """Play clients that send the next request immediately. Their first answers differ in length, so that they end one
    after another."""
    output = setup.work.output_tokens
    sent = [
        _request(
            setup, lap * clients + client, 0.0, output if lap else max(output * (client + 1) // clients, 1), client
        )
        for lap in range(LAPS)
        for client in range(clients)
    ]
    over = _play(fleet, sent, "closed_loop").requests
    return [one for one in over if 2 * clients <= one.index < (LAPS - 1) * clients]  # without the ramps at both ends


def _request(setup: Setup, number: int, at_s: float, output: int, client: int | None = None) -> TraceRequest:
    blocks = -(-setup.work.prompt_tokens // BLOCK)
    session = "" if client is None else f"client {client}"
    own = (range(number * blocks, (number + 1) * blocks),)
    return TraceRequest(number, at_s, session, setup.work.prompt_tokens, output, own, BLOCK, 0.0)


def _play(fleet: TwinFleet, requests: Sequence[TraceRequest], pacing: str) -> TwinOutcome:
    offloads = any(engine.role != "both" for engine in fleet.instances.values())
    return simulate(fleet, POLICIES[offloads], requests, pacing=pacing, seed=SEED)


# Figures of a run


def answers_per_s(outcome: TwinOutcome) -> float:
    """Return the rate between the first quarter and the last of the answers."""
    ends = sorted(one.sent_s + one.e2e_s for one in outcome.requests if one.e2e_s is not None)
    first, last = len(ends) // 4, 3 * len(ends) // 4
    return (last - first) / (ends[last] - ends[first])


def itl_s(one: Simulated) -> float:
    """Return the mean gap after the second token, which waits for the transfer; with two tokens, the gap before the
    second."""
    ttft_s, second_s, e2e_s = one.ttft_s or 0.0, one.second_s or 0.0, one.e2e_s or 0.0
    return (e2e_s - second_s) / (one.output_tokens - 2) if one.output_tokens > 2 else second_s - ttft_s


def p90(values: Sequence[float]) -> float:
    return quantiles(values, n=10)[-1]


def interruptions(requests: Sequence[Simulated]) -> float:
    return fmean(one.interruptions for one in requests)


def transfers(requests: Sequence[Simulated]) -> float:
    return fmean(one.transfers for one in requests)


def of_role(outcome: TwinOutcome, role: str) -> list[SimulatedUse]:
    return [use for name, use in outcome.instances.items() if name.startswith(role)]


def guide() -> Setup:
    """Return the guide's example: a worker computes 4 prompts a second, and a batch of 8 gives 2 answers a second."""
    law = Law(0.01, 0.24 / 1000, 0.0, 0.0, 0.0, 0.0)
    link = TransferLink(setup_s=0.005, idle_bytes_per_s=1e10, busy_bytes_per_s=1e10)
    return Setup(law, law, Workload(1000, 335), 8, 8, 131_072, link)


# Simulates the autoscaler's rules for both sides while traffic changes: each side grows if it holds up the other, and
# releases workers that its load does not need
TRAFFIC = ("as given", "prompts doubled", "answers doubled, too")
USABLE = 0.8  # share of a side that may be in use
MOST_STEPS, MOST_WORKERS = 4, 16  # steps per kind of traffic; workers per side


@dataclass(frozen=True, slots=True)
class Reading:
    """Workers under one kind of traffic, and the autoscaler's advice."""

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


def readings(setup: Setup, rate: float) -> Iterator[Reading]:
    """Simulate, starting from 1P1D, the given traffic, then prompts of twice the length, then also answers of twice the
    length."""
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


def _reading(traffic: str, setup: Setup, rate: float, prefills: int, decodes: int) -> Reading:
    outcome = open_run(setup, pairs(setup, prefills, decodes), rate, REQUESTS)
    point = _point(setup, outcome)
    advised = (
        _sized(point.prefill, prefills_for(point), rate / point.answers_per_s),
        _sized(point.decode, decoders_for(point), rate / point.answers_per_s),
    )
    ttft_ms = p90([one.ttft_s * 1e3 for one in steady(outcome) if one.ttft_s is not None])
    return Reading(traffic, prefills, decodes, point, ttft_ms, None if advised == (prefills, decodes) else advised)


def _sized(side: SideLoad | None, in_balance: int, offered: float) -> int:
    """Return the workers of a side: up to the balance while it is full, one fewer with spare capacity, and in both
    cases only as far as the load needs. `offered` is the number of requests per answered request."""
    assert side is not None  # noqa: S101 - narrows the type: there are workers of both roles
    needed = min(ceil(round(offered * side.work / USABLE, 2)), MOST_WORKERS)
    if in_balance > side.instances:
        return max(side.instances, min(in_balance, needed))
    return max(side.instances - 1, needed, 1) if needed < side.instances else side.instances


def _point(setup: Setup, outcome: TwinOutcome) -> LoadPoint:
    """Return the load while requests arrive, without the first quarter; workers report every second."""
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
        answers_per_s=answers_per_s(outcome),
        prefill=prefill,
        decode=decode,
    )


def _sides(setup: Setup, outcome: TwinOutcome, second: int) -> tuple[SideLoad, SideLoad]:
    batch = {"prefill": setup.prefill_batch, "decode": setup.decode_batch}
    found = sides(
        MeasuredInstance(role, use.running[second], use.kv_usage[second], batch[role])
        for role in batch
        for use in of_role(outcome, role)
    )
    assert found is not None  # noqa: S101 - narrows the type: there are workers of both roles
    return found


LAPS = 5  # answers per client of a closed loop
SEED = 1
POLICIES = {  # every request goes through both sides, or to the instances in turn
    True: document.parse(document.default("round_robin_pd")),
    False: document.parse(document.default("round_robin")),
}
