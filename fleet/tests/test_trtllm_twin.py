"""The servers of the `trtllm` kind that the twin can simulate."""

from statistics import fmean
from typing import Any

import pytest

from fleet.engine.dwdp.laws import DepLaw, DwdpLaw
from fleet.engine.law import Law
from fleet.engine.profiles import UnknownProfile
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import StepPlan
from fleet.kinds import KINDS
from fleet.kinds.kind import Launch, TwinModel
from fleet.kinds.options.option import build

GROUP = {"dwdp_size": 4, "prefill_instances": 4, "chunked_prefill": False, "attention_dp": True}


def model_of(given: dict[str, Any], ordinal: int = 0, model: str = "nvidia/DeepSeek-R1-FP4") -> TwinModel:
    kind = KINDS["trtllm"]
    assert kind.twin_model is not None
    launch = Launch("p-0", model, "127.0.0.1", {"http": 1}, "python", ordinal)
    return kind.twin_model(build(kind.spec, given), launch)


def test_a_pool_has_context_servers_of_one_mode_and_generation_servers() -> None:
    given = {**GROUP, "tensor_parallel": 8, "max_batch_size": 16, "max_num_tokens": 4096}
    context, generation = model_of(given).engine, model_of(given, 4).engine
    assert isinstance(context.law, DwdpLaw)
    assert (context.role, generation.role) == ("prefill", "decode")
    assert (context.limits.max_num_batched_tokens, generation.limits.max_num_batched_tokens) == (4096, 8 * 4096)
    assert (context.limits.max_num_seqs, generation.limits.max_num_seqs) == (16, 128)
    assert context.limits.batching == "whole_prompts"
    assert generation.kv_tokens > 8 * context.kv_tokens
    assert "DWDP4" in model_of(given).source


def test_attention_dp_makes_a_dep_server() -> None:
    made = model_of({"attention_dp": True, "tensor_parallel": 4, "role": "prefill"})
    assert isinstance(made.engine.law, DepLaw)
    assert made.engine.limits.batching == "vllm"
    assert made.source.endswith("servers: DEP4")
    assert any("GB200" in caution for caution in made.not_modelled)
    guesses = model_of({"attention_dp": True, "tensor_parallel": 4, "speculative": '{"max_draft_len": 3}'})
    assert guesses.not_modelled == (*made.not_modelled, "speculative decoding is not modelled")


def test_hot_experts_lengthen_the_steps_of_a_dep_server() -> None:
    dep = {"attention_dp": True, "tensor_parallel": 4, "role": "prefill"}
    laws = [model_of({**dep, "hot_experts": hot}).engine.law for hot in (0.0, 1.2)]
    assert all(isinstance(law, DepLaw) for law in laws)
    even, hot = (fmean(step_s(law, seed) for seed in range(50)) for law in laws)
    assert hot > 1.02 * even


def step_s(law: Law, seed: int) -> float:
    prompts = [(EngineRequest(str(number), 8_192, 1, []), 8_192) for number in range(4)]
    return law.plan_s(StepPlan(start_s=float(seed), prefill=prompts))


@pytest.mark.parametrize(
    ("given", "model", "words"),
    [
        ({"attention_dp": True, "tensor_parallel": 4}, "Llama-3.1-8B", "no constants for Llama-3.1-8B"),
        ({"tensor_parallel": 4}, "DeepSeek-R1", "set attention_dp, or dwdp_size"),
        ({}, "DeepSeek-R1", "GB on each of 1 GPUs, a GB200 has 186: spread it over more GPUs"),
        ({**GROUP, "dwdp_prefetch": 65}, "DeepSeek-R1", "65 must be 1 to 64"),
        ({**GROUP, "dwdp_experts": 200, "dwdp_size": 2, "dwdp_prefetch": 56}, "DeepSeek-R1", "GB on each of 1 GPUs"),
    ],
)
def test_other_models_are_refused_with_the_reason(given: dict[str, Any], model: str, words: str) -> None:
    with pytest.raises(UnknownProfile, match=words):
        model_of(given, model=model)
