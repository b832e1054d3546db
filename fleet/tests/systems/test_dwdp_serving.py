"""Prompts at context servers: how long they wait, and how many GPUs they need."""

from dataclasses import replace
from itertools import pairwise

import pytest

from fleet.engine.dwdp.phase import Prompts
from fleet.systems.dwdp.pareto import context_pools
from fleet.systems.dwdp.planning import Demand, context_pool
from fleet.systems.dwdp.published import r1_phase
from fleet.systems.dwdp.serving import MOST_PROMPTS, ContextServer, dep_server, dwdp_server, first_token

R1 = r1_phase(Prompts.uniform(8192, 0.8))
ONE_BY_ONE = ContextServer(1, (1.0,))
DEMAND = Demand(
    prompts_per_s=12,
    prompt_tokens=7_373,
    generation_gpus=12,
    output_tokens_per_s=12_000,
    user_tokens_per_s=50,
    output_tokens=1_000,
)


def test_a_server_of_one_prompt_at_a_time_waits_as_the_formula_says() -> None:
    """M/D/1: the wait is the load over 2 · (1 − load), in service times."""
    assert first_token(ONE_BY_ONE, 1, 0.5).wait_s == pytest.approx(0.5, rel=0.15)
    assert first_token(ONE_BY_ONE, 1, 0.5).prefill_s == 1.0
    assert first_token(ONE_BY_ONE, 1, 0.001).wait_s < 0.01


def test_more_servers_at_the_same_load_wait_less() -> None:
    waits = [first_token(ONE_BY_ONE, servers, 0.8 * servers).wait_s for servers in (1, 2, 8, 64)]
    assert all(more < fewer for fewer, more in pairwise(waits))
    assert first_token(ONE_BY_ONE, 6_400, 5_120).wait_s == pytest.approx(waits[-1])


def test_waiting_prompts_share_an_iteration() -> None:
    batching = ContextServer(1, (1.0, 1.1, 1.2, 1.3))
    busy = first_token(batching, 1, 2.0)
    assert 1.1 < busy.prefill_s < 1.3
    assert busy.wait_s < 1.3


def test_time_between_iterations_delays_waiting_prompts_but_no_answer() -> None:
    late = first_token(ContextServer(1, (1.0,), between_s=0.5), 1, 0.5)
    assert late.prefill_s == 1.0
    assert late.wait_s > 1.5 * first_token(ONE_BY_ONE, 1, 0.5).wait_s
    assert dwdp_server(replace(R1, between_ms=500.0)).between_s == 0.5


def test_a_group_of_dep_computes_one_prompt_together_and_each_gpu_of_dwdp_waits_for_its_copy() -> None:
    dep, dwdp = dep_server(R1), dwdp_server(R1)
    assert (len(dep.iteration_s), len(dwdp.iteration_s)) == (16, 4)
    assert dep.iteration_s[0] == pytest.approx(R1.dep_alone_s, rel=0.01)
    assert dwdp.iteration_s[0] == pytest.approx(R1.dwdp_alone_s, rel=0.01)
    assert dwdp.iteration_s[0] > 2 * dep.iteration_s[0]
    assert 16 / dep.iteration_s[-1] < 4 * 4 / dwdp.iteration_s[-1]  # in full iterations: prompts/s of four GPUs


def test_prompts_much_shorter_than_an_iteration_are_batched() -> None:
    short = dwdp_server(replace(R1, prompts=Prompts(16)))
    assert len(short.iteration_s) == MOST_PROMPTS
    assert short.lump == pytest.approx(R1.tokens / 16 / MOST_PROMPTS, rel=0.01)
    assert first_token(short, 4, 100.0).prefill_s == pytest.approx(short.iteration_s[0], rel=0.1)


def test_higher_throughput_comes_with_a_later_first_token() -> None:
    dep, dwdp = context_pools(R1, DEMAND)
    assert (dep.gpus, dwdp.gpus) == (8, 4)
    assert dep.even_gpus / dwdp.even_gpus == pytest.approx(R1.gain)
    assert (round(dep.tokens_per_gpu), round(dwdp.tokens_per_gpu)) == (600, 750)
    assert dwdp.ttft_s > 2 * dep.ttft_s
    assert dwdp.tokens_per_user < dep.tokens_per_user < DEMAND.user_tokens_per_s


def test_a_load_that_fits_exactly_needs_no_further_gpu() -> None:
    demand = replace(DEMAND, prompts_per_s=8, prompt_tokens=1_000, max_load=0.8)
    assert context_pool(demand, 1_000, ONE_BY_ONE, unit=1).gpus == 10
    assert context_pool(demand, 1_000, ONE_BY_ONE, unit=4).gpus == 12
