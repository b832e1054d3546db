"""DWDP groups in the options of the `trtllm` kind."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from fleet.engine.profiles import UnknownProfile
from fleet.kinds import KINDS
from fleet.kinds.kind import Launch, check_engine
from fleet.kinds.options.option import build
from fleet.spec.fleet_spec import InvalidFleet, parse_fleet
from router.contract.values.problem import Problem

TRTLLM, R1 = KINDS["trtllm"], "deepseek-ai/DeepSeek-R1"
GROUP = {"dwdp_size": 4, "prefill_instances": 4, "chunked_prefill": False}


WHOLE = {"dwdp_size": 4, "dwdp_groups": 2, "tensor_parallel": 8, "attention_dp": True, "chunked_prefill": False}


def launch(ordinal: int = 0, model: str = R1) -> Launch:
    return Launch(f"p-{ordinal}", model, "127.0.0.1", {"http": 8000}, "python", ordinal)


def problems(given: Mapping[str, Any], model: str = R1) -> list[Problem]:
    return check_engine(TRTLLM, given, "engine", model)


def options(given: Mapping[str, Any], ordinal: int = 0, model: str = R1) -> dict[str, Any]:
    assert problems(given, model) == []
    (text,) = TRTLLM.files(build(TRTLLM.spec, given), launch(ordinal, model)).values()
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_context_servers_of_a_group_share_the_experts_of_a_layer() -> None:
    given = {**GROUP, "speculative": '{"max_draft_len": 3}'}
    context, generation = options(given, 3), options(given, 4)
    assert context["dwdp_config"] == {
        "dwdp_size": 4,
        "num_groups": 1,
        "num_experts_per_worker": 64,
        "num_prefetch_experts": 64,
        "contention_opt": False,
    }
    assert context["disable_overlap_scheduler"] is True
    assert context["speculative_config"] == {"max_draft_len": 3}
    assert "dwdp_config" not in generation


def test_servers_that_also_decode_share_experts_between_gpus_with_their_own_attention() -> None:
    found = options(WHOLE)
    assert (found["dwdp_config"]["dwdp_size"], found["dwdp_config"]["num_groups"]) == (4, 2)
    assert (found["enable_attention_dp"], found["disable_overlap_scheduler"]) == (True, True)
    spec = build(TRTLLM.spec, WHOLE)
    assert TRTLLM.group(spec, 0) == TRTLLM.facts(spec, launch()) == ()
    with pytest.raises(UnknownProfile, match="DWDP of servers that also decode is not modelled"):
        TRTLLM.twin_model(spec, launch())


def test_a_group_may_hold_experts_twice_and_fetch_them_in_slices() -> None:
    given = {**GROUP, "dwdp_experts": 70, "dwdp_contention_opt": True, "dwdp_groups": 2, "prefill_instances": 8}
    found = options(given)["dwdp_config"]
    assert (found["num_experts_per_worker"], found["num_prefetch_experts"]) == (70, 62)
    assert (found["num_groups"], found["contention_opt"]) == (2, True)


@pytest.mark.parametrize(
    ("given", "option", "words"),
    [
        ({"dwdp_size": 4, "role": "decode"}, "dwdp_size", "is for context servers, or servers that do both"),
        ({"dwdp_size": 4}, "dwdp_size", "does not work with chunked_prefill"),
        ({"dwdp_size": 4, "chunked_prefill": False}, "dwdp_size", "needs attention_dp without context servers"),
        ({**WHOLE, "tensor_parallel": 4}, "tensor_parallel", "must be dwdp_size x dwdp_groups = 8"),
        ({"dwdp_size": 4, "role": "prefill"}, "dwdp_size", "does not work with chunked_prefill"),
        ({**GROUP, "prefill_tensor_parallel": 2}, "prefill_tensor_parallel", "must be 1 with DWDP"),
        (
            {"dwdp_size": 4, "role": "prefill", "chunked_prefill": False, "tensor_parallel": 2},
            "tensor_parallel",
            "must be 1 with DWDP",
        ),
        ({**GROUP, "prefill_instances": 6}, "prefill_instances", "must be dwdp_size x dwdp_groups = 4"),
        ({**GROUP, "dwdp_experts": 60, "dwdp_prefetch": 64}, "dwdp_experts", "60 held + 3 x 64 copied = 252 experts"),
        ({**GROUP, "dwdp_prefetch": 65}, "dwdp_prefetch", "65 must be 1 to 64: 256 experts on 4 GPUs"),
        ({**GROUP, "dwdp_total_experts": 3}, "dwdp_size", "must be 2 to 3, the experts of a layer"),
        ({**GROUP, "model": "mine"}, "dwdp_total_experts", "must be set: the experts of a layer of mine are not known"),
    ],
)
def test_an_impossible_group_is_refused(given: dict[str, Any], option: str, words: str) -> None:
    (problem,) = problems(given)
    assert problem.path == f"engine.{option}"
    assert problem.text.startswith(words)


@pytest.mark.parametrize(
    ("model", "experts"),
    [
        ("nvidia/DeepSeek-R1-FP4", 256),
        ("deepseek-ai/DeepSeek-V3.1", 256),
        ("openai/gpt-oss-120b", 128),
        ("openai/gpt-oss-20b", 32),
        ("Qwen/Qwen3-235B-A22B", 128),
        ("moonshotai/Kimi-K2-Instruct", 384),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", None),
        ("DeepSeek-V3-Lite", None),
    ],
)
def test_the_experts_of_known_models_need_not_be_given(model: str, experts: int | None) -> None:
    if experts is None:
        assert problems(GROUP, model)[0].path == "engine.dwdp_total_experts"
        assert problems({**GROUP, "dwdp_total_experts": 64}, model) == []
    else:
        assert options(GROUP, model=model)["dwdp_config"]["num_experts_per_worker"] == experts // 4


def test_a_fleet_document_may_describe_the_model() -> None:
    pool = {"name": "p", "model": R1, "kind": "trtllm", "replicas": 6, "engine": {**GROUP, "dwdp_prefetch": 65}}
    document = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": [pool]}}
    with pytest.raises(InvalidFleet) as refused:
        parse_fleet(document)
    (problem,) = refused.value.problems
    assert problem.path == "spec.pools[0].engine.dwdp_prefetch"
    pool["engine"] = GROUP
    assert parse_fleet(document).pools[0].engine == GROUP


@pytest.mark.parametrize(
    ("engine", "replicas", "allowed"),
    [
        (GROUP, 5, ""),
        (GROUP, 4, ""),
        (GROUP, 0, ""),
        (GROUP, 3, "0 or 4"),
        ({**GROUP, "dwdp_groups": 2, "prefill_instances": 8}, 6, "4 or 8"),
        ({**GROUP, "dwdp_groups": 2, "prefill_instances": 8, "gpus": ["0", "1", "2", "3", "4", "5"]}, 5, "4"),
        ({"dwdp_size": 2, "dwdp_groups": 2, "role": "prefill", "chunked_prefill": False}, 3, "2 or 4"),
        ({}, 3, ""),
    ],
)
def test_replicas_that_split_a_group_are_refused(engine: dict[str, Any], replicas: int, allowed: str) -> None:
    pool = {"name": "p", "model": R1, "kind": "trtllm", "replicas": replicas, "engine": engine}
    document = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": [pool]}}
    if not allowed:
        assert parse_fleet(document).pools[0].replicas == replicas
        return
    with pytest.raises(InvalidFleet) as refused:
        parse_fleet(document)
    (problem,) = refused.value.problems
    assert (problem.path, problem.value) == ("spec.pools[0].replicas", replicas)
    assert problem.text == f"would split a group of instances, which serves only whole; allowed: {allowed}"


def test_a_context_server_lists_its_held_and_copied_experts() -> None:
    spec = build(TRTLLM.spec, {**GROUP, "dwdp_groups": 2, "prefill_instances": 8})
    assert TRTLLM.facts(spec, launch(5)) == (
        ("DWDP", "rank 1 of 4 in group 1"),
        ("Experts held", "64–127 of 256 in a layer"),
        ("Experts copied", "0–63 from rank 0, 128–191 from rank 2, 192–255 from rank 3"),
    )
    assert TRTLLM.facts(spec, launch(8)) == ()


def test_a_stored_pool_that_is_no_longer_valid_is_still_shown() -> None:
    spec = build(TRTLLM.spec, {**GROUP, "dwdp_experts": 1, "dwdp_prefetch": 1})
    assert TRTLLM.facts(spec, launch()) == ()
    (text,) = TRTLLM.files(spec, launch()).values()
    assert json.loads(text)["dwdp_config"]["num_experts_per_worker"] == 1


def test_a_server_writes_the_load_page_that_its_node_reads() -> None:
    made = options({})
    assert (made["return_perf_metrics"], made["enable_iter_perf_stats"]) == (True, True)
    assert (TRTLLM.metrics_path, TRTLLM.scrape.kv_usage) == ("/prometheus/metrics", "trtllm_kv_cache_utilization")


def test_generation_servers_can_span_more_gpus() -> None:
    given = {**GROUP, "attention_dp": True, "tensor_parallel": 4, "gpus": [*map(str, range(12))]}
    spec = build(TRTLLM.spec, given)
    context, generation = launch(3), launch(5)
    assert problems(given) == []
    assert "--tp_size 1 --ep_size 1" in " ".join(TRTLLM.command(spec, context))
    assert "--tp_size 4 --ep_size 4" in " ".join(TRTLLM.command(spec, generation))
    assert TRTLLM.environment(spec, context)["CUDA_VISIBLE_DEVICES"] == "3"
    assert TRTLLM.environment(spec, generation)["CUDA_VISIBLE_DEVICES"] == "8,9,10,11"
    assert TRTLLM.max_replicas(spec) == 6
    assert (TRTLLM.devices(spec, "prefill"), TRTLLM.devices(spec, "decode")) == (1, 4)
    assert options(given, 5)["enable_attention_dp"] is True


@pytest.mark.parametrize(
    ("given", "replicas"),
    [
        ({}, None),
        ({"gpus": ["0", "1", "2"], "tensor_parallel": 2}, 1),
        ({"dwdp_size": 2, "dwdp_groups": 2, "role": "prefill"}, 4),
        ({"dwdp_size": 2, "dwdp_groups": 2, "role": "prefill", "gpus": ["0"]}, 1),
        ({"gpus": ["0"], "prefill_instances": 2}, 1),
    ],
)
def test_the_options_limit_the_replicas(given: dict[str, Any], replicas: int | None) -> None:
    assert TRTLLM.max_replicas(build(TRTLLM.spec, given)) == replicas


def test_dep_distributes_the_experts_over_a_servers_gpus() -> None:
    spec = build(TRTLLM.spec, {"attention_dp": True, "tensor_parallel": 4})
    assert "--tp_size 4 --ep_size 4" in " ".join(TRTLLM.command(spec, launch()))
    plain = build(TRTLLM.spec, {"tensor_parallel": 4})
    assert "--ep_size" not in " ".join(TRTLLM.command(plain, launch()))
    given = {"tensor_parallel": 8, "prefill_tensor_parallel": 2, "expert_parallel": 4, "prefill_instances": 1}
    context, generation = (TRTLLM.command(build(TRTLLM.spec, given), launch(ordinal)) for ordinal in (0, 1))
    assert "--tp_size 2 --ep_size 2" in " ".join(context)
    assert "--tp_size 8 --ep_size 4" in " ".join(generation)
