"""Time per output token of vLLM 0.12.0 with Qwen3-32B on two H100, closed loop.
The figures are from aiconfigurator-core 0.12.0 (Apache-2.0), its measured points of `h100_sxm`, `vllm`.
"""

import csv
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from controlplane.evidence.twin.simulation.tests.reproductions.closed_loop import Measured, measure
from fleet.engine.engine import Engine
from fleet.engine.law import law_of
from fleet.engine.profiles import kv_blocks, profile
from fleet.engine.scheduler import Limits

CLIENTS = (8, 16, 32, 64, 128)
TPOT_MS = {  # by tokens of prompt and answer, for each number of clients
    (1024, 128): (18.04, 22.18, 29.38, 46.02, 80.26),
    (1024, 512): (16.48, 17.88, 21.00, 28.51, 42.29),
    (1024, 1024): (15.90, 17.38, 20.06, 26.09, 37.84),
    (4096, 128): (26.34, 42.57, 74.99, 140.28, 156.80),
    (4096, 512): (19.14, 24.60, 35.75, 61.04, 64.33),
    (4096, 1024): (17.87, 21.88, 29.33, 52.57, 55.20),
}
SERVED = profile("h100_sxm", "Qwen3-32B", 2, version=(0, 12))
LAW, BLOCKS = law_of(SERVED), kv_blocks(SERVED, sequences=1024)  # the default of its GPU
LIMITS = Limits(async_scheduling=SERVED.is_async)
# Prompt tokens, and the limits of mean error and bias. The constants of the host were fitted to the first 15 points.
AT_MOST = [(1024, 0.025, 0.025), (4096, 0.06, 0.03)]


@cache
def in_the_twin(clients: int, prompt: int, output: int) -> Measured:
    running = min(clients, BLOCKS * 16 // (prompt + output))
    first_answer_s = running * LAW.prefill_s(prompt) + output * LAW.step_s(running, 0.0, running * prompt, running)
    return measure(Engine(LAW, BLOCKS, LIMITS), clients, prompt, output, first_answer_s)


def errors(prompt: int) -> list[float]:
    """Return the relative errors of the points with prompts of this length."""
    return [
        in_the_twin(clients, *lengths).tpot_s * 1e3 / measured - 1
        for lengths, row in TPOT_MS.items()
        if lengths[0] == prompt
        for clients, measured in zip(CLIENTS, row, strict=True)
    ]


@pytest.mark.parametrize(("prompt", "mean_error", "bias"), AT_MOST)
def test_the_engine_reproduces_measured_closed_loops(prompt: int, mean_error: float, bias: float) -> None:
    found = errors(prompt)
    assert len(found) == 15
    assert fmean(map(abs, found)) <= mean_error
    assert abs(fmean(found)) <= bias


DATA = Path(__file__).resolve().parents[7] / "shared" / "data" / "measured_h100_qwen3_32b.csv"


@pytest.mark.skipif(not DATA.is_file(), reason=f"{DATA} is absent: it holds the measurements")
def test_whole_answers_are_within_four_percent_and_two_where_first_tokens_hardly_count() -> None:
    """How the clients began is unknown, but determines the TTFT of a closed loop."""
    errors, long_answers = [], []
    for row in csv.DictReader(DATA.read_text().splitlines()):
        clients, prompt, output = (int(row[name]) for name in ("concurrency", "isl", "osl"))
        found = in_the_twin(clients, prompt, output)
        measured_ms = float(row["ttft_ms"]) + float(row["tpot_ms"]) * (output - 1)
        error = abs((found.ttft_s + found.tpot_s * (output - 1)) * 1e3 / measured_ms - 1)
        errors.append(error)
        long_answers += [error] if output == 1024 and clients <= 32 else []
    assert (len(errors), len(long_answers)) == (30, 6)
    assert fmean(errors) <= 0.04
    assert fmean(long_answers) <= 0.02
