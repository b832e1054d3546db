"""Time per output token of vLLM 0.12.0 with Qwen3-32B on two H100, closed loop.

Source of the figures: aiconfigurator-core 0.12.0 (Apache-2.0), its measured points of `h100_sxm`, `vllm`.
"""

from itertools import product

import pytest

from controlplane.twin.simulation.tests.reproductions.closed_loop import measure
from fleet.engine.engine import Engine
from fleet.engine.law import law_of
from fleet.engine.profiles import kv_blocks, profile

CLIENTS = (8, 16, 32, 64, 128)
TPOT_MS = {  # by tokens of prompt and answer, for each number of clients
    (1024, 128): (18.04, 22.18, 29.38, 46.02, 80.26),
    (1024, 512): (16.48, 17.88, 21.00, 28.51, 42.29),
    (1024, 1024): (15.90, 17.38, 20.06, 26.09, 37.84),
    (4096, 128): (26.34, 42.57, 74.99, 140.28, 156.80),
    (4096, 512): (19.14, 24.60, 35.75, 61.04, 64.33),
    (4096, 1024): (17.87, 21.88, 29.33, 52.57, 55.20),
}
SERVED = profile("h100_sxm", "Qwen3-32B", 2)
LAW, BLOCKS = law_of(SERVED), kv_blocks(SERVED)
POINTS = [(at, *lengths) for lengths, at in product(TPOT_MS, range(len(CLIENTS)))]


def closed_form_ms(clients: int, prompt: int, output: int) -> float:
    """With as many at a time as the KV cache holds at mid answer."""
    running = min(clients, int(BLOCKS * 16 / (prompt + output / 2)))
    return LAW.decode_interval_s(running, prompt, output) * 1e3


def engine_ms(clients: int, prompt: int, output: int) -> float:
    first_answer_s = closed_form_ms(clients, prompt, output) / 1e3 * output
    return measure(Engine(LAW, BLOCKS), clients, prompt, output, first_answer_s).tpot_s * 1e3


def mean_error(predicted: dict[tuple[int, int, int], float]) -> float:
    errors = [abs(ms / TPOT_MS[prompt, output][at] - 1) for (at, prompt, output), ms in predicted.items()]
    return sum(errors) / len(errors)


def test_the_closed_form_is_within_eight_percent_of_thirty_measured_points() -> None:
    assert len(POINTS) == 30
    predicted = {(at, *lengths): closed_form_ms(CLIENTS[at], *lengths) for at, *lengths in POINTS}
    assert mean_error(predicted) == pytest.approx(0.073, abs=0.002)


def test_the_engine_is_within_four_percent_up_to_32_clients_and_nine_in_all() -> None:
    """8.5 % in all, where the closed form has 7.3: beyond 32 clients it is too fast. A step of many sequences costs
    the host more than the law's constant, and one of prefill and decode together reads the weights only once."""
    run = {(at, *lengths): engine_ms(CLIENTS[at], *lengths) for at, *lengths in POINTS}
    few = {point: ms for point, ms in run.items() if CLIENTS[point[0]] <= 32}
    assert mean_error(few) <= 0.04
    assert mean_error(run) <= 0.09
