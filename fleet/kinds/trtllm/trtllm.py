"""The `trtllm` kind: TensorRT-LLM's OpenAI server, colocated or as context and generation servers (with DWDP). Only its
command line is tested, because running it requires NVIDIA GPUs. In the help texts, ↑ and ↓ show whether a larger value
raises or lowers throughput (TPS/GPU) and the speed for one user (TPS/user).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from fleet.kinds.kind import Kind, Launch, Requirement
from fleet.kinds.options.common_options import (
    arguments_option,
    environment_option,
    image_option,
    model_option,
    prefill_instances_option,
    program_option,
)
from fleet.kinds.options.option import option
from fleet.kinds.serving import (
    BOTH,
    NVIDIA,
    PREFILL,
    ROLES,
    events_at,
    events_config,
    first_device,
    fitting,
    flags,
    own_role,
    tokenizer_of,
    visible,
    weights_of,
)
from fleet.kinds.sim import trtllm_twin
from fleet.kinds.sim.twin_kv import TwinKv
from fleet.kinds.trtllm import trtllm_dwdp
from fleet.kinds.wire import KvWire
from router.contract import connectors
from router.contract.metrics.engine_metrics import TRTLLM_SCRAPE
from router.contract.values.json_value import JsonObject

OPTIONS_FILE = "llm_options.yaml"
# Extra arguments that make prompts differ from what the tokenizer's folder implies.
_OTHER_PROMPTS = ("--chat-template", "--custom-tokenizer")
_SCHEDULERS = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")


@dataclass(frozen=True)
class TrtllmSpec:
    model: str | None = model_option()
    program: str = program_option("trtllm-serve")
    role: str = option(BOTH, "Role", "prefill: context servers; decode: generation servers.", choices=ROLES)
    prefill_instances: int = prefill_instances_option(
        "Context servers",
        "This many instances, the first of the pool, are context servers, the others generation servers. "
        "↑ TPS/user, ↓ TPS/GPU.",
    )
    gpus: tuple[str, ...] = option((), "GPUs", "Ids, assigned to the instances in order; empty: all are visible.")
    tensor_parallel: int = option(
        1, "Tensor parallel", "Per instance. ↑ TPS/user, ↓ TPS/GPU.", unit="GPUs", range=(1, 64)
    )
    prefill_tensor_parallel: int | None = option(
        None,
        "Tensor parallel of context servers",
        "Per context server; left out: tensor_parallel, with DWDP 1.",
        unit="GPUs",
        range=(1, 64),
    )
    attention_dp: bool = option(
        False,
        "Attention DP",
        "Each GPU computes the attention of its own prompts and all share the experts (DEP). ↑ TPS/GPU.",
    )
    expert_parallel: int | None = option(
        None,
        "Expert parallel",
        "Left out: with attention_dp all GPUs of a server, else experts are not distributed.",
        unit="GPUs",
        range=(1, 64),
    )
    dwdp_size: int = option(
        1,
        "DWDP group",
        "GPUs that prefetch each other's experts instead of waiting for the slowest: context servers, or with "
        "attention_dp those of a server that also decodes; 1: off. ↑ TPS/GPU if computing a layer takes longer than "
        "the fetch.",
        unit="GPUs",
        range=(1, 64),
    )
    dwdp_groups: int = option(
        1,
        "DWDP groups",
        "Groups of dwdp_size GPUs: together all context servers, or one server that also decodes.",
        range=(1, 64),
    )
    dwdp_experts: int | None = option(
        None,
        "DWDP experts",
        "Held by each GPU of the group; left out: all but those it fetches. ↑ redundancy, ↓ memory for KV.",
        range=(1, 4096),
    )
    dwdp_prefetch: int | None = option(
        None,
        "DWDP prefetch",
        "Experts fetched from each other GPU for the next layer; left out: as many as divide evenly.",
        range=(1, 4096),
    )
    dwdp_contention_opt: bool = option(
        False, "DWDP slices", "Fetch in slices of 2 MiB in turn, which hides contention at a GPU."
    )
    dwdp_total_experts: int | None = option(
        None,
        "Experts of a layer",
        "Per layer of the model, without shared ones: dwdp_experts + (dwdp_size - 1) x dwdp_prefetch. "
        "Left out: known for DeepSeek-R1 and V3, gpt-oss, Qwen3 and Kimi-K2.",
        range=(2, 4096),
    )
    hot_experts: float = option(
        0.0,
        "Hot experts",
        "For the twin: Zipf exponent of the router's choice, for which attention_dp servers wait; 0: uniform.",
        range=(0.0, 3.0),
    )
    max_batch_size: int = option(256, "Batch", "Concurrent sequences. ↑ TPS/GPU, ↓ TPS/user.", range=(1, 65_536))
    max_num_tokens: int = option(8192, "Batched tokens", "↑ TPS/GPU, ↓ TPS/user.", unit="tokens", range=(16, 1_048_576))
    max_seq_len: int | None = option(
        None, "Longest request", "Prompt and output.", unit="tokens", range=(16, 10_000_000)
    )
    capacity_scheduler: str = option(
        "GUARANTEED_NO_EVICT",
        "Scheduler",
        "MAX_UTILIZATION: ↑ TPS/GPU, ↓ TPS/user when it evicts.",
        choices=_SCHEDULERS,
    )
    chunked_prefill: bool = option(True, "Chunked prefill", "↑ TPS/user next to long prompts; not with DWDP.")
    free_gpu_memory_fraction: float = option(
        0.9, "KV cache", "Share of the free GPU memory. ↑ TPS/GPU.", range=(0.05, 0.99)
    )
    speculative: str | None = option(
        None, "Speculative decoding", "JSON for speculative_config. ↑ TPS/user, ↓ TPS/GPU under load.", kind="text"
    )
    transfer: str = option(
        "UCX",
        "KV transfer",
        "From context to generation servers. TensorRT-LLM 1.4, whose KV cache manager is V2 by default: NIXL.",
        choices=("DEFAULT", "UCX", "NIXL", "MPI"),
    )
    kv_events: bool = option(
        False,
        "KV events",
        "Publish which blocks are cached, for the exact prefix index: TensorRT-LLM 1.4, its KV cache manager V2.",
    )
    arguments: tuple[str, ...] = arguments_option()
    environment: Mapping[str, str] | None = environment_option()
    image: str | None = image_option()


def gpus_each(spec: TrtllmSpec, own: str) -> int:
    if own != PREFILL:
        return spec.tensor_parallel
    is_single = spec.dwdp_size > 1 and spec.prefill_instances > 0
    return spec.prefill_tensor_parallel or (1 if is_single else spec.tensor_parallel)


def _expert_parallel(spec: TrtllmSpec, own: str) -> int | None:
    """Return the expert parallelism. With attention DP, experts are spread over all GPUs of a server."""
    gpus = gpus_each(spec, own)
    return min(spec.expert_parallel, gpus) if spec.expert_parallel else gpus if spec.attention_dp else None


def _gpus(spec: TrtllmSpec, launch: Launch) -> tuple[str, ...]:
    first = first_device(spec, launch.ordinal, gpus_each)
    return launch.gpus or spec.gpus[first : first + gpus_each(spec, own_role(spec, launch))]


def _max_replicas(spec: TrtllmSpec) -> int | None:
    limits = [spec.dwdp_size * spec.dwdp_groups] if spec.dwdp_size > 1 and spec.role == PREFILL else []
    if spec.gpus:
        limits.append(fitting(spec, len(spec.gpus), gpus_each))
    return min(limits, default=None)


def command(spec: TrtllmSpec, launch: Launch) -> list[str]:
    given = {
        "host": launch.host,
        "port": launch.ports["http"],
        "backend": "pytorch",
        "tp_size": gpus_each(spec, own_role(spec, launch)),
        "ep_size": _expert_parallel(spec, own_role(spec, launch)),
        "max_batch_size": spec.max_batch_size,
        "max_num_tokens": spec.max_num_tokens,
        "max_seq_len": spec.max_seq_len,
        "kv_cache_free_gpu_memory_fraction": spec.free_gpu_memory_fraction,
        "extra_llm_api_options": f"{launch.folder}/{OPTIONS_FILE}",
    }
    model = weights_of(spec, launch)
    return [launch.path(spec.program), model, *flags(given), *spec.arguments]


def files(spec: TrtllmSpec, launch: Launch) -> dict[str, str]:
    """Return the configuration files as JSON, which is valid YAML."""
    return {OPTIONS_FILE: json.dumps(_options(spec, launch), indent=1) + "\n"}


def _options(spec: TrtllmSpec, launch: Launch) -> JsonObject:
    found: JsonObject = {
        "enable_attention_dp": spec.attention_dp,
        "enable_chunked_prefill": spec.chunked_prefill,
        "scheduler_config": {"capacity_scheduler_policy": spec.capacity_scheduler},
        "kv_cache_config": {
            "free_gpu_memory_fraction": spec.free_gpu_memory_fraction,
            **({"use_kv_cache_manager_v2": True} if spec.kv_events else {}),
        },
        # Without return_perf_metrics there is no metrics page; without enable_iter_perf_stats, the page has no load.
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
    }
    if own_role(spec, launch) != BOTH:
        found["cache_transceiver_config"] = {
            **{"backend": spec.transfer, "max_tokens_in_buffer": spec.max_num_tokens},
            **({"transceiver_runtime": "PYTHON"} if spec.kv_events else {}),
        }
    if own_role(spec, launch) == PREFILL or trtllm_dwdp.shares_experts(spec, launch):
        # DWDP does not support it; a context server has no next token to overlap with
        found["disable_overlap_scheduler"] = True
    if spec.kv_events:
        found["kv_events_config"] = events_config(launch.host, launch.ports["events"], launch.ports["replay"])
    if trtllm_dwdp.shares_experts(spec, launch):
        found["dwdp_config"] = trtllm_dwdp.config(spec, launch)
    return found | ({"speculative_config": json.loads(spec.speculative)} if spec.speculative else {})


def refuse(spec: TrtllmSpec) -> dict[str, str]:
    problems = {
        "speculative": _json_problem(spec.speculative) if spec.speculative else "",
        "kv_events": "needs attention_dp off: each GPU would have its own cache, and requests cannot name one"
        if spec.kv_events and spec.attention_dp
        else "",
        "transfer": "must be NIXL with kv_events: the KV cache manager V2 moves no blocks otherwise"
        if spec.kv_events and spec.transfer != "NIXL" and (spec.role != BOTH or spec.prefill_instances)
        else "",
    }
    return trtllm_dwdp.refuse(spec) | {name: problem for name, problem in problems.items() if problem}


def _json_problem(text: str) -> str:
    try:
        return "" if isinstance(json.loads(text), dict) else "must be a JSON object"
    except ValueError as error:
        return f"must be a JSON object: {error}"


def wire(spec: TrtllmSpec, launch: Launch) -> KvWire:
    own = own_role(spec, launch)
    return KvWire(
        own,
        "" if own == BOTH else connectors.TRTLLM,
        events=events_at(launch) if spec.kv_events else "",
        tokenizer=tokenizer_of(spec, launch, "--tokenizer", _OTHER_PROMPTS, launch.path(spec.model or launch.model))
        if spec.kv_events
        else "",
    )


def requires(spec: TrtllmSpec, launch: Launch) -> tuple[Requirement, ...]:
    return (
        Requirement("program", launch.path(spec.program), advice="pip install tensorrt_llm, or set engine.program"),
        Requirement("folder", "/dev/nvidia0", advice="this host has no NVIDIA GPU"),
    )


TRTLLM = Kind(
    name="trtllm",
    title="TensorRT-LLM",
    spec=TrtllmSpec,
    ports=("http", "events", "replay"),
    port_spans=lambda spec: dict.fromkeys(("events", "replay"), int(spec.kv_events)),
    free_options=("hot_experts",),
    later_options=("kv_events",),
    command=command,
    environment=lambda spec, launch: {"PYTHONPATH": ""} | visible(_gpus(spec, launch)) | dict(spec.environment or {}),
    metrics_path="/prometheus/metrics",
    scrape=TRTLLM_SCRAPE,
    load_timeout_s=3600,
    drain_timeout_s=600,
    grace_s=15,
    refuse=refuse,
    refuse_for=trtllm_dwdp.refuse_for,
    facts=trtllm_dwdp.facts,
    group=trtllm_dwdp.group,
    wire=wire,
    max_replicas=_max_replicas,
    files=files,
    requires=requires,
    device=NVIDIA,
    devices=gpus_each,
    connectors=(connectors.TRTLLM,),
    twin_model=lambda spec, launch: trtllm_twin.twin_model(
        spec, launch, gpus_each(spec, own_role(spec, launch)), wire(spec, launch).connector
    ),
    twin_kv=lambda spec, launch: TwinKv(trtllm_twin.kv_sizes(launch.path(spec.model or launch.model))),
)
