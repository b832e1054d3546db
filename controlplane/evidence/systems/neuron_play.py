"""Plays Neuron's serving in the twin: prefill and decode workers, or instances that do both."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, quantiles

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.types import Simulated, SimulatedUse, TwinFleet, TwinOutcome
from fleet.engine.engine_model import EngineModel, Role, TransferLink, TransferModel
from fleet.engine.law import Law
from fleet.engine.neuron_batches import BATCHING_OF_ROLE
from fleet.engine.scheduler import Limits
from fleet.systems.neuron import Workload
from router.policy.schema import document

BLOCK = 512  # block size of the trace
CHUNK = 2_048  # tokens per step if prompts are computed in chunks
REQUESTS = 120  # requests per open run
LAPS = 5  # answers per client of a closed loop
SEED = 1
POLICIES = {  # Every request goes through both sides, or to each instance in its turn
    True: document.parse(document.default("round_robin_pd")),
    False: document.parse(document.default("round_robin")),
}


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
    """Return instances that prefill and decode: prompts first and whole, or by another batching of engines."""
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
        kv_blocks=(batch + 1) * (tokens // BLOCK + 2),  # as Neuron reserves: every sequence at its full length
        limits=Limits(BLOCK, batch, CHUNK, batching or BATCHING_OF_ROLE[role], async_scheduling=False),
        role=role,
        connector="" if role == "both" else "neuron",
        transfers=None if role == "both" else moves,
    )


def open_run(setup: Setup, fleet: TwinFleet, rate: float, requests: int = REQUESTS) -> TwinOutcome:
    """Play requests at random intervals, the same in every run."""
    draw, at_s, sent = random.Random(SEED), 0.0, []  # noqa: S311 - a simulation
    for number in range(requests):
        sent.append(_request(setup, number, at_s, setup.work.output_tokens))
        at_s += draw.expovariate(rate)
    return _play(fleet, sent, "timestamps")


def steady(outcome: TwinOutcome) -> Sequence[Simulated]:
    """Return the requests without the first quarter, which finds the workers idle."""
    return outcome.requests[len(outcome.requests) // 4 :]


def closed_run(setup: Setup, fleet: TwinFleet, clients: int) -> Sequence[Simulated]:
    """Play clients that ask again at once. Their first answers differ in length, so that they end one after the
    other."""
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
    """Return the mean gap after the second token, which waits for the transfer; with two tokens, the gap itself."""
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
