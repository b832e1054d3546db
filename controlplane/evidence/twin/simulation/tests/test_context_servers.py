"""DeepSeek-R1 on GB200 in the twin: four context GPUs as one DEP server or as a DWDP group, and eight generation
GPUs."""

import random
from collections.abc import Iterable
from statistics import fmean
from typing import Any

import pytest

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.tests.builders import asks, play, policy
from controlplane.evidence.twin.simulation.types import TwinFleet, TwinOutcome
from fleet.engine.dwdp.phase import Prompts
from fleet.kinds import KINDS
from fleet.kinds.kind import Launch
from fleet.kinds.options.option import build
from fleet.systems.dwdp.published import r1_phase
from fleet.systems.dwdp.serving import dep_server, dwdp_server, first_token

COMMON = {"max_num_tokens": 32_768, "attention_dp": True, "tensor_parallel": 8, "chunked_prefill": False}
OFFLOAD = policy("round_robin", flow__heavy="offload", classes__heavy_new_tokens=500, classes__warm_new_tokens=100)
LEAST_LOADED = policy("lpwl", flow__heavy="offload", classes__heavy_new_tokens=500, classes__warm_new_tokens=100)


def servers(replicas: int, **options: Any) -> TwinFleet:
    kind = KINDS["trtllm"]
    assert kind.twin_model is not None
    spec = build(kind.spec, {**COMMON, **options})
    launches = [Launch(f"p-{n}", "DeepSeek-R1", "127.0.0.1", {"http": 1}, "python", n) for n in range(replicas)]
    return TwinFleet({launch.instance: kind.twin_model(spec, launch).engine for launch in launches})


DEP4 = servers(2, prefill_tensor_parallel=4, prefill_instances=1)
DWDP4 = servers(5, dwdp_size=4, prefill_instances=4)


def lengths(count: int, shortest: int, seed: int = 1) -> list[int]:
    """Return prompt lengths with a mean of 7,373 tokens."""
    draw = random.Random(seed)
    return [draw.randint(shortest, 14_746 - shortest) for _ in range(count)]


def at_once(tokens: Iterable[int]) -> list[TraceRequest]:
    return [asks(n, 0.0, tokens=one, output=2) for n, one in enumerate(tokens)]


def prompts_per_s(fleet: TwinFleet, tokens: list[int]) -> float:
    """Return the throughput of context servers that always have waiting prompts."""
    over = play(at_once(tokens), fleet=fleet, policy=OFFLOAD).requests
    first = sorted(one.ttft_s for one in over if one.ttft_s is not None)
    begin, end = first[len(first) // 5], first[len(first) * 4 // 5]
    return sum(begin < one <= end for one in first) / (end - begin)


def paced(fleet: TwinFleet, rate: float) -> TwinOutcome:
    draw = random.Random(2)
    requests = [asks(n, n / rate, tokens=draw.randint(6_554, 8_192), output=10) for n in range(int(20 * rate))]
    return play(requests, fleet=fleet, policy=OFFLOAD)


def mean_ttft_s(outcome: TwinOutcome) -> float:
    assert {one.outcome for one in outcome.requests} == {"ok"}
    return fmean(one.ttft_s for one in outcome.requests if one.ttft_s is not None)


def test_prompts_are_computed_on_context_servers_and_answers_elsewhere() -> None:
    outcome = paced(DWDP4, 4)
    assert {one.instance for one in outcome.requests} == {"p-4"}
    assert all(max(outcome.instances[f"p-{n}"].running) > 0 for n in range(4))
    assert outcome.not_modelled == ()


def test_saturated_throughput_is_that_of_the_closed_form() -> None:
    phase, tokens = r1_phase(Prompts.uniform(8192, 0.8)), lengths(320, 6_554)
    dep, dwdp = prompts_per_s(DEP4, tokens), prompts_per_s(DWDP4, tokens)
    assert dep == pytest.approx(4 * phase.tokens_per_s(phase.dep_ms) / 7373, rel=0.05)
    assert dwdp == pytest.approx(4 * phase.tokens_per_s(phase.dwdp_ms) / 7373, rel=0.05)
    assert dwdp / dep == pytest.approx(phase.gain, rel=0.05)


def test_dep_answers_first_while_it_keeps_up_and_last_otherwise() -> None:
    quiet = mean_ttft_s(paced(DEP4, 4)) / mean_ttft_s(paced(DWDP4, 4))
    full = mean_ttft_s(paced(DEP4, 14)) / mean_ttft_s(paced(DWDP4, 14))
    assert quiet < 0.7
    assert full > 1.3


def test_slices_are_never_slower_than_whole_pulls() -> None:
    slices = servers(5, dwdp_size=4, prefill_instances=4, dwdp_contention_opt=True)
    assert mean_ttft_s(paced(slices, 6)) < mean_ttft_s(paced(DWDP4, 6))


def test_equal_runs_are_equal_and_another_server_has_another_random_spread() -> None:
    assert paced(DEP4, 4) == paced(DEP4, 4)
    two = servers(3, prefill_tensor_parallel=4, prefill_instances=2)
    assert two.instances["p-0"].law != two.instances["p-1"].law


def test_a_dwdp_server_decodes_at_the_speed_of_its_copies() -> None:
    """A DWDP server should not decode, because every step fetches all experts."""
    law = DWDP4.instances["p-0"].law
    assert law.step_s(1, 0.0, 8_000, 1) > 0.5
    assert DEP4.instances["p-0"].law.step_s(1, 0.0, 8_000, 1) < 0.02


@pytest.mark.parametrize(("mode", "rate"), [("dep", 3.0), ("dwdp", 3.0), ("dep", 9.0), ("dwdp", 9.0)])
def test_the_first_token_of_the_curve_is_that_of_the_twin(mode: str, rate: float) -> None:
    """In the twin, the transfer of the KV is added."""
    draw, now, requests = random.Random(3), 0.0, []
    for n in range(300):
        now += draw.expovariate(rate)
        requests.append(asks(n, now, tokens=draw.randint(6_554, 8_192), output=10))
    outcome = play(requests, fleet={"dep": DEP4, "dwdp": DWDP4}[mode], policy=LEAST_LOADED)
    moved = fmean(one.kv_s for one in outcome.requests)
    phase = r1_phase(Prompts.uniform(8192, 0.8))
    server, servers = (dep_server(phase), 1) if mode == "dep" else (dwdp_server(phase), 4)
    first = first_token(server, servers, rate)
    assert first.wait_s + first.prefill_s == pytest.approx(mean_ttft_s(outcome) - moved, rel=0.2)
