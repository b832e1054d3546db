"""The clock of a full GPU."""

import pytest

from fleet.engine.engine import Engine
from fleet.engine.law import law_from, law_of
from fleet.engine.power import GH100, UNKNOWN, Clock, at_limit_s, draws_of, limit_w
from fleet.engine.profiles import profile
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Limits

LAW = law_of(profile("h200_sxm", "Llama-3.1-8B", 1))


def test_only_gpus_whose_power_was_measured_slow_down() -> None:
    assert draws_of("h100_sxm") == draws_of("NVIDIA H200") == GH100
    assert draws_of("NVIDIA H100 PCIe") == draws_of("b200_sxm") == draws_of("") == UNKNOWN
    assert law_of(profile("b200_sxm", "Llama-3.1-8B", 1)).draws == UNKNOWN
    assert law_of(profile("h200_sxm", "Qwen3-30B-A3B", 1)).draws == GH100  # by tables


def test_the_clock_falls_only_while_the_mean_power_would_exceed_the_limit() -> None:
    clock = Clock(GH100)
    assert [clock.slowdown(share) for share in (0.0, 0.3, 0.57)] == [1.0, 1.0, 1.0]
    assert clock.slowdown(0.75) == pytest.approx(1.2 * 0.75 / (1 - 0.73 * 0.25))
    assert clock.slowdown(1.0) == pytest.approx(1.2)


def test_sustained_arithmetic_slows_down_after_a_second_and_recovers_when_idle() -> None:
    clock, at_s, steps = Clock(GH100), 0.0, list[float]()
    for _ in range(60):
        steps.append(clock.step_s(at_s, 0.11, 0.1))
        at_s += steps[-1]
    assert steps[:8] == [pytest.approx(0.11)] * 8
    assert steps == sorted(steps)
    assert 0.11 < steps[14] < steps[-1] < 0.01 + 0.12
    assert clock.step_s(at_s + 3.0, 0.11, 0.1) == pytest.approx(0.11)


def test_reads_of_memory_keep_their_pace() -> None:
    clock, at_s = Clock(GH100), 0.0
    for _ in range(1_000):
        lasts_s = clock.step_s(at_s, 0.01, 0.005)
        assert lasts_s == pytest.approx(0.01)  # half of the time leaves the limit alone
        at_s += lasts_s


def test_a_gpu_draws_as_measured_while_idle_reading_and_computing() -> None:
    limit = limit_w("h100_sxm")
    assert limit == limit_w("NVIDIA H200") == 700
    assert limit_w("b200_sxm") is limit_w("") is None
    watts = [limit * at_limit_s(GH100, *seconds) for seconds in ((0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.5, 0.5, 0.0))]
    assert watts == pytest.approx([119, 511, 315])


def test_arithmetic_takes_the_same_energy_at_any_clock() -> None:
    alone, full, at_s = Clock(GH100), Clock(GH100), 0.0
    for _ in range(60):
        at_s += full.step_s(at_s, 0.11, 0.1)
    busy_s, before_s = full.step_s(at_s, 0.11, 0.1), full.more_s
    assert busy_s > alone.step_s(0.0, 0.11, 0.1)
    full.step_s(at_s + busy_s, 0.11, 0.1)
    at_full_clock = at_limit_s(GH100, 0.11, 0.0, alone.more_s)
    assert at_full_clock == pytest.approx(0.1 * GH100.computing + 0.01 * GH100.reading)
    slowed = at_limit_s(GH100, busy_s, 0.0, full.more_s - before_s)
    assert slowed == pytest.approx(at_full_clock, rel=0.01)
    assert slowed / busy_s == pytest.approx(1.0, abs=0.01)  # the mean is held at the limit


def served(law_draws: bool, prompts: int) -> float:
    """Return the time at which an engine has answered the given number of concurrent prompts."""
    law = LAW if law_draws else LAW.drawing(UNKNOWN)
    engine = Engine(law, 10_000, Limits())
    for number in range(prompts):
        engine.add_request(EngineRequest(str(number), 4_000, 2, range(number << 20, (number << 20) + 250)), 0.0)
    while engine.step() is not None:
        pass
    return engine.clock_s


def test_an_engine_computes_one_prompt_as_the_law_says_and_many_more_slowly() -> None:
    assert served(law_draws=True, prompts=1) == served(law_draws=False, prompts=1)
    assert 1.1 < served(law_draws=True, prompts=100) / served(law_draws=False, prompts=100) < 1.2


def test_constants_of_an_older_calibration_have_a_clock_that_never_falls() -> None:
    kept = {"fixed_s": 0.0, "compute_s_per_token": 2e-5, "weights_s": 0.005, "attention_s_per_pair": 1e-9}
    kept |= {"kv_s_per_token": 3e-8, "allreduce_s_per_token": 0.0}
    assert law_from(kept).draws == UNKNOWN
    assert law_from({**kept, "computing_draw": 1.2, "reading_draw": 0.73}).draws == GH100
