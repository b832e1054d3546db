"""Neuron's disaggregated inference in the twin, with the example of its guide: 4 prefills and 2 answers per second."""

from dataclasses import replace
from statistics import fmean

import pytest

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.tests.builders import api_s, asks, play, policy
from controlplane.evidence.twin.simulation.types import Simulated, TwinFleet
from fleet.engine.engine_model import EngineModel, Role, TransferModel
from fleet.engine.law import Law
from fleet.engine.neuron_batches import BATCHING_OF_ROLE
from fleet.engine.scheduler import Limits

PROMPT, ANSWER, BATCH = 1000, 335, 8
LAW = Law(0.01, 0.24 / PROMPT, 0.0, 0.0, 0.0, 0.0)
PREFILL_S = 0.25
STEP_S = LAW.step_s(BATCH, 0.0, 0, BATCH)  # an answer takes 335 steps; a batch of 8 finishes 2 answers a second
MOVES = TransferModel(bytes_per_token=1e5, setup_s=0.005, idle_bytes_per_s=1e10, busy_bytes_per_s=1e10, together=True)
OFFLOAD = policy("round_robin", flow__heavy="offload", classes__heavy_new_tokens=500, classes__warm_new_tokens=100)


def worker(role: Role, **changed: object) -> EngineModel:
    limits = Limits(64, BATCH, 8192, BATCHING_OF_ROLE[role], async_scheduling=False)
    connector, transfers = ("", None) if role == "both" else ("neuron", MOVES)
    made = EngineModel(LAW, 2_000, limits, role=role, connector=connector, transfers=transfers)
    return replace(made, **changed)  # type: ignore[arg-type]


def workers(prefills: int, decodes: int) -> TwinFleet:
    roles: list[Role] = [*["prefill"] * prefills, *["decode"] * decodes]  # type: ignore[list-item]
    return TwinFleet({f"w-{number}": worker(role) for number, role in enumerate(roles)})


def load(rate: float, duration_s: float, prompt: int = PROMPT) -> list[TraceRequest]:
    return [asks(n, n / rate, tokens=prompt, output=ANSWER) for n in range(int(rate * duration_s))]


def answers_per_s(prefills: int, decodes: int) -> float:
    over = play(load(8, 20), fleet=workers(prefills, decodes), policy=OFFLOAD).requests
    ends = [one.sent_s + one.e2e_s for one in over if one.e2e_s is not None]
    assert {one.outcome for one in over} == {"ok"}
    return sum(8 <= end < 24 for end in ends) / 16


def test_the_slower_side_sets_the_rate_and_a_second_decoder_doubles_it() -> None:
    assert answers_per_s(1, 1) == pytest.approx(2, rel=0.06)
    assert answers_per_s(1, 2) == pytest.approx(4, rel=0.06)


def test_the_prefill_sends_the_first_token_and_the_second_follows_the_transfer() -> None:
    (one,) = play(load(1, 1), fleet=workers(1, 1), policy=OFFLOAD).requests
    transfer_s = MOVES.seconds(round(PROMPT * 1e5), 1, busy=True)
    assert one.ttft_s == pytest.approx(api_s(PROMPT) + PREFILL_S)
    assert one.second_s is not None
    assert one.second_s == pytest.approx(
        api_s(PROMPT) + PREFILL_S + transfer_s + LAW.step_s(1, 0, 0, 1), abs=MOVES.poll_s
    )
    assert (one.instance, one.cached_tokens) == ("w-1", PROMPT)


def test_transfer_buffers_are_created_once_per_pair() -> None:
    slow = {f"w-{n}": worker(role, transfers=replace(MOVES, connect_s=2.0)) for n, role in enumerate(ROLES)}
    first, second = play(load(0.1, 20), fleet=TwinFleet(slow), policy=OFFLOAD).requests
    assert first.second_s is not None
    assert second.second_s is not None
    assert first.second_s - second.second_s == pytest.approx(2.0, abs=MOVES.poll_s)


ROLES: tuple[Role, ...] = ("prefill", "decode")


def closed(fleet: TwinFleet, prompt: int = PROMPT) -> list[Simulated]:
    """Eight clients that send their next request at once; their first answers end one after the other."""
    requests = [
        asks(turn * 8 + client, output=ANSWER * (client + 1) // 8 if not turn else ANSWER, session=f"c{client}",
             tokens=prompt)
        for turn in range(5)
        for client in range(8)
    ]  # fmt: skip
    over = play(requests, fleet=fleet, policy=OFFLOAD, pacing="closed_loop").requests
    return [one for one in over if 16 <= one.index < 32]  # without the ramps at both ends


def test_seven_prompts_interrupt_an_answer_among_eight_but_none_when_they_are_computed_elsewhere() -> None:
    together = closed(TwinFleet({"w-0": worker("both")}))
    assert fmean(one.interruptions for one in together) == pytest.approx(7, abs=0.2)
    itl_s = fmean(one.tpot_s or 0 for one in together)
    assert itl_s == pytest.approx(STEP_S + 7 * PREFILL_S / ANSWER, rel=0.03)
    apart = closed(workers(1, 1))
    assert sum(one.interruptions for one in apart) == 0
    assert [{one.transfers for one in each} for each in (together, apart)] == [{0}, {1}]
    assert max(one.tpot_s or 0 for one in apart) < 1.1 * STEP_S


def test_longer_prompts_lengthen_the_gaps_of_continuous_batching_and_the_queue_of_the_prefill() -> None:
    """Prompts of twice the length, at 1.5 requests per second."""
    both = TwinFleet({"w-0": worker("both"), "w-1": worker("both")})
    changes = []
    for made in (both, workers(1, 1)):
        short, long = (play(load(1.5, 16, prompt), fleet=made, policy=OFFLOAD).requests for prompt in (1000, 2000))
        changes.append(fmean(one.tpot_s or 0 for one in long) / fmean(one.tpot_s or 0 for one in short))
    assert changes[0] > 1.05
    assert changes[1] == pytest.approx(1, abs=0.02)
