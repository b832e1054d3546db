"""Step times of context and generation servers."""

from dataclasses import replace
from statistics import fmean

import pytest

from fleet.engine.dwdp.laws import MEMORY_REACHED, DepLaw, DwdpLaw, generation_law
from fleet.engine.dwdp.machine import DEEPSEEK_R1, GB200
from fleet.engine.dwdp.phase import Prompts
from fleet.engine.dwdp.table_1 import REACHED, TOKENS
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import StepPlan
from fleet.systems.dwdp.published import r1_phase
from fleet.tests.test_trtllm_twin import GROUP, model_of

DEP4 = model_of({"attention_dp": True, "tensor_parallel": 4, "role": "prefill"}).engine.law
DWDP4 = model_of(GROUP).engine.law
EVEN = [7_373] * 16
UNEVEN = [1_500, 13_246] * 8


def plan_of(lengths: list[int], start_s: float = 0.0) -> StepPlan:
    plan = StepPlan(start_s)
    for number, tokens in enumerate(lengths):
        plan.add(EngineRequest(f"r{number}", tokens, 1, ()), tokens)
    return plan


def mean_s(lengths: list[int], law: DepLaw) -> float:
    """Return the mean over the drawn spread."""
    return fmean(law.plan_s(plan_of(lengths, start)) for start in range(300))


def test_a_step_is_an_iteration_of_the_closed_form() -> None:
    assert isinstance(DEP4, DepLaw)
    assert isinstance(DWDP4, DwdpLaw)
    phase = r1_phase(Prompts(7_373))
    assert phase.tokens == 4 * 7_373 == round(TOKENS / 7_373) * 7_373  # the whole prompts that fit
    layers = phase.moe.moe_layers
    assert mean_s(EVEN, DEP4) == pytest.approx(DEP4.fixed_s + phase.dep_ms * layers / 1e3, rel=0.005)
    assert DWDP4.plan_s(plan_of(EVEN[:4])) == pytest.approx(DWDP4.fixed_s + phase.dwdp_ms * layers / 1e3, rel=0.001)


@pytest.mark.parametrize("exponent", [0.6, 1.42])
def test_a_step_of_dep_waits_for_hot_experts_as_long_as_the_closed_form(exponent: float) -> None:
    assert isinstance(DEP4, DepLaw)
    phase = replace(r1_phase(Prompts(7_373)), hot_experts=exponent)
    hot = replace(DEP4, hot_experts=exponent)
    assert mean_s(EVEN, hot) == pytest.approx(hot.fixed_s + phase.dep_ms * phase.moe.moe_layers / 1e3, rel=0.01)
    assert mean_s(EVEN, hot) > 1.002 * mean_s(EVEN, DEP4)


def test_a_step_of_dep_lasts_as_long_as_its_slowest_gpu() -> None:
    """Even alternating short and long prompts leave one GPU with more to do; DWDP notices only attention."""
    assert isinstance(DEP4, DepLaw)
    still = replace(DEP4, reached=replace(DEP4.reached, skew_ms_per_token=0.0))
    waits = still.plan_s(plan_of(UNEVEN[:5])) - still.step_s(sum(UNEVEN[:5]), plan_of(UNEVEN[:5]).pairs, 0, 0)
    assert waits > 0.1
    assert still.plan_s(plan_of(EVEN)) == pytest.approx(still.step_s(sum(EVEN), plan_of(EVEN).pairs, 0, 0))
    assert mean_s(EVEN, DEP4) > still.plan_s(plan_of(EVEN))


def test_a_prompt_alone_is_faster_on_a_dep_group() -> None:
    """All GPUs of DEP compute the prompt's experts, while DWDP has too little work to hide the copy."""
    assert isinstance(DEP4, DepLaw)
    phase = r1_phase(Prompts(7_373))
    still = replace(DEP4, reached=replace(DEP4.reached, skew_ms_per_token=0.0))
    alone = plan_of(EVEN[:1])
    assert still.plan_s(alone) == pytest.approx(DEP4.fixed_s + phase.dep_alone_s)
    assert DWDP4.plan_s(alone) == pytest.approx(DWDP4.fixed_s + phase.dwdp_alone_s)
    assert phase.dwdp_alone_s > 2 * phase.dep_alone_s


def test_the_spread_is_drawn_with_a_seed() -> None:
    assert isinstance(DEP4, DepLaw)
    assert DEP4.plan_s(plan_of(EVEN)) == DEP4.plan_s(plan_of(EVEN))
    assert DEP4.plan_s(plan_of(EVEN)) != replace(DEP4, seed=7).plan_s(plan_of(EVEN))


def test_decodes_count_as_a_token_of_some_gpu_and_read_their_context() -> None:
    request = EngineRequest("r", 1_000, 10, ())
    request.computed, request.generated = 1_000, 1
    plan = StepPlan(0.0)
    plan.add(request, 1)
    for law in (DEP4, DWDP4):
        assert law.plan_s(plan) == pytest.approx(law.step_s(1, 0.0, 1_001, 1), rel=0.3)


def test_each_gpu_of_a_generation_server_reads_its_share_of_the_experts_and_the_shared_one() -> None:
    moe = DEEPSEEK_R1
    for gpus in (4, 8):
        law, alone = (generation_law(each, GB200, REACHED, gpus, 0.0) for each in (moe, replace(moe, shared=0)))
        read_s = moe.expert_bytes * moe.moe_layers / (GB200.memory_bytes_per_s * MEMORY_REACHED)
        assert law.weights_s - alone.weights_s == pytest.approx(read_s)
        assert law.experts_s == pytest.approx(moe.experts / gpus * read_s)


def test_a_larger_generation_server_is_faster() -> None:
    slow, fast = (
        model_of({**GROUP, "tensor_parallel": gpus}, ordinal=4).engine.law.step_s(64, 0.0, 64 * 8_000, 64)
        for gpus in (4, 16)
    )
    assert 0.003 < fast < slow < 0.1
