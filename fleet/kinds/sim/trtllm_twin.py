"""The twin's model of servers of the `trtllm` kind: DeepSeek-R1 on GB200, by the model of DWDP and DEP."""

from typing import TYPE_CHECKING

from fleet.engine.dwdp.layout import LayoutError
from fleet.engine.dwdp.servers import (
    MOE,
    SOURCE,
    TRANSFERS,
    GenerationServer,
    TooLarge,
    dep_server,
    dwdp_server,
    generation_server,
)
from fleet.engine.engine_model import EngineModel
from fleet.engine.profiles import NoRoom, UnknownProfile
from fleet.engine.scheduler import VLLM, WHOLE_PROMPTS, Limits
from fleet.kinds.kind import Launch, TwinModel
from fleet.kinds.kv_size import KvSizes, sizes_of
from fleet.kinds.serving import DECODE, PREFILL, own_role
from fleet.systems.dwdp.known_models import experts_of

if TYPE_CHECKING:
    from fleet.kinds.trtllm.trtllm import TrtllmSpec

CAUTIONS = (
    "the GPUs are assumed to be GB200 in one NVL72",
    "generation servers and KV transfers are rooflines: none of their times were measured",
    "the GPUs of a server have one KV cache in the twin, and one each in TensorRT-LLM",
)
SPECULATIVE = "speculative decoding is not modelled"
_BLOCK = 32  # tokens per block, TensorRT-LLM's default


def twin_model(spec: "TrtllmSpec", launch: Launch, gpus: int, connector: str) -> TwinModel:
    """Return the twin's model. Raise UnknownProfile."""
    model = spec.model or launch.model
    if experts_of(model) != MOE.experts or "deepseek" not in model.lower():
        raise UnknownProfile(f"no constants for {model} on TensorRT-LLM; there are: DeepSeek-R1 and V3 on GB200")
    role = own_role(spec, launch)
    try:
        server = _server(spec, launch, role, gpus)
        kv_tokens = server.kv_tokens(spec.free_gpu_memory_fraction)
    except TooLarge as error:
        raise NoRoom(str(error)) from None
    except LayoutError as error:
        raise UnknownProfile(str(error)) from None
    batching = VLLM if spec.chunked_prefill else WHOLE_PROMPTS
    engine = EngineModel(
        law=server.law,
        kv_blocks=int(kv_tokens / _BLOCK),
        limits=Limits(
            _BLOCK,
            spec.max_batch_size * server.ranks,
            spec.max_num_tokens * server.ranks,
            batching,
            async_scheduling=role == DECODE,
            ranks=server.ranks,
        ),
        window=spec.max_seq_len,
        role=role,
        connector=connector,
        transfers=TRANSFERS if connector else None,
    )
    cautions = (*CAUTIONS, SPECULATIVE) if spec.speculative else CAUTIONS
    return TwinModel(engine, f"{SOURCE}; {_mode(spec)}", cautions, transferred=True)


def kv_sizes(model: str) -> KvSizes | None:
    known = experts_of(model) == MOE.experts and "deepseek" in model.lower()
    return KvSizes(MOE.kv_bytes, MOE.layers) if known else sizes_of(model)


def _mode(spec: "TrtllmSpec") -> str:
    return (
        f"context servers: DWDP{spec.dwdp_size}"
        if spec.dwdp_size > 1
        else f"servers: DEP{spec.prefill_tensor_parallel or spec.tensor_parallel}"
    )


def _server(spec: "TrtllmSpec", launch: Launch, role: str, gpus: int) -> GenerationServer:
    """Return the server. Raise UnknownProfile, LayoutError."""
    if role == PREFILL and spec.dwdp_size > 1:
        return dwdp_server(spec.dwdp_size, spec.dwdp_experts, spec.dwdp_prefetch, sliced=spec.dwdp_contention_opt)
    if spec.dwdp_size > 1 and role != DECODE:
        raise UnknownProfile("DWDP of servers that also decode is not modelled")
    if gpus > 1 and not spec.attention_dp:
        raise UnknownProfile("tensor parallelism of attention is not modelled: set attention_dp, or dwdp_size")
    if role == DECODE or gpus == 1:
        return generation_server(gpus)
    return dep_server(gpus, launch.ordinal, hot_experts=spec.hot_experts)
