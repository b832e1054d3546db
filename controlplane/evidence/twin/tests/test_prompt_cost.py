"""The cost of a prompt token: the same GPUs cost the same as instances, ranks or groups."""

from typing import Any

import pytest

from controlplane.evidence.twin.pool_model import twin_of
from controlplane.evidence.twin.prompt_cost import PromptCost, prompt_cost
from fleet.kinds import KINDS
from fleet.kinds.options.option import build
from fleet.models import Pool

pytestmark = pytest.mark.django_db


def cost_of(replicas: int = 2, kind: str = "sim", **engine: Any) -> PromptCost:
    pool = Pool(pk=0, name="p", model="m", kind=kind, replicas=replicas, engine=engine)
    known = KINDS[kind]
    return prompt_cost(twin_of(pool).fleet, known, build(known.spec, engine))


def test_a_token_costs_the_same_on_ranks_as_on_instances() -> None:
    alone = cost_of(8)
    assert alone == cost_of(2, data_parallel_size=4)
    assert alone.has_gpus


def test_a_token_on_two_gpus_costs_both() -> None:
    one, two = (cost_of(model_profile="Llama-3.1-8B", tp=tp).gpu_s for tp in (1, 2))
    assert two == pytest.approx(one, rel=0.3)


@pytest.mark.parametrize("context_servers", ["dep", "dwdp"])
def test_only_instances_that_compute_prompts_count(context_servers: str) -> None:
    groups = {"kv": "trtllm", "context_servers": context_servers, "prefill_instances": 1, "prefill_tp": 4}
    costs = [cost_of(**groups, tp=tp).gpu_s for tp in (8, 16)]
    assert costs[0] == costs[1]


def test_a_group_costs_the_same_as_one_engine_or_as_a_rank_for_each_gpu() -> None:
    groups = {"kv": "trtllm", "prefill_instances": 1, "prefill_tp": 4, "tp": 8}
    dep, dwdp = (cost_of(**groups, context_servers=mode).gpu_s for mode in ("dep", "dwdp"))
    assert dep == pytest.approx(dwdp, rel=0.01)
