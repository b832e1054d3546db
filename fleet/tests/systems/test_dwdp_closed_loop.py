"""Clients in a closed loop in front of context and generation GPUs."""

from dataclasses import replace

import pytest

from fleet.engine.dwdp.machine import DEEPSEEK_R1
from fleet.engine.dwdp.phase import Prompts
from fleet.engine.dwdp.servers import TooLarge
from fleet.systems.dwdp.closed_loop import MOST_POOLS, Loop, LoopPoint, best, point, pools
from fleet.systems.dwdp.published import r1_phase
from fleet.systems.dwdp.serving import ContextServer

R1, KV = r1_phase(Prompts.uniform(8192, 0.8)), DEEPSEEK_R1.kv_bytes
LOOP = Loop(256, 7_373, 1_000, 8)


def played(seconds: float, servers: int, loop: Loop = LOOP) -> LoopPoint:
    return point(R1, ContextServer(1, (seconds,)), servers, loop, KV)


def test_a_single_client_waits_only_for_its_own_prompt_and_answer() -> None:
    alone = played(2.0, 1, replace(LOOP, clients=1))
    assert alone.ttft_s == pytest.approx(2.0)
    answer_s = 1_000 / alone.tokens_per_user
    assert alone.tokens_per_gpu == pytest.approx(1_000 / (2 + answer_s) / 9, rel=0.05)


def test_clients_queue_for_too_few_context_gpus_and_get_their_answers_faster() -> None:
    few, many = played(0.1, 1), played(0.1, 4)
    assert few.ttft_s > 5 * many.ttft_s
    assert few.tokens_per_user > 1.1 * many.tokens_per_user
    assert few.tokens_per_gpu * 9 == pytest.approx(1_000 / 0.1, rel=0.05)  # at the rate at which prompts are computed


def test_clients_and_times_follow_littles_law() -> None:
    found = played(0.1, 4)
    answers_per_s = found.tokens_per_gpu * 12 / 1_000
    assert answers_per_s * (found.ttft_s + 1_000 / found.tokens_per_user) == pytest.approx(256, rel=0.15)


def test_answers_without_room_for_their_kv_wait_until_another_ends() -> None:
    fits, beyond = played(0.001, 64, replace(LOOP, clients=2_600)), played(0.001, 64, replace(LOOP, clients=4_000))
    assert fits.ttft_s < 1 < beyond.ttft_s
    assert beyond.tokens_per_user == pytest.approx(fits.tokens_per_user, rel=0.1)


def test_pools_grow_in_whole_groups_up_to_the_gpus_that_the_clients_keep_busy() -> None:
    dep, dwdp = pools(R1, LOOP, KV)
    assert [one.context_gpus for one in dep] == [4, 8]
    assert best(dwdp) in dwdp
    many, _ = pools(R1, Loop(200, 262_144, 16, 64), KV)
    assert len(many) <= MOST_POOLS + 1


def test_short_prompts_share_an_iteration() -> None:
    short = r1_phase(Prompts(256))
    dep, dwdp = pools(short, Loop(512, 256, 1_000, 8), KV)
    assert {one.context_gpus for one in dep + dwdp} == {4}
    assert dep[0].tokens_per_user > 10


def test_an_answer_whose_kv_does_not_fit_is_not_played() -> None:
    assert pools(R1, replace(LOOP, output_tokens=1e9), KV) == ([], [])


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TooLarge):
        pools(R1, replace(LOOP, generation_gpus=1), KV)
