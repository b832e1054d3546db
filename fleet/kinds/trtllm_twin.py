"""How the twin computes servers of the `trtllm` kind: DeepSeek-R1 on GB200, by the model of DWDP and DEP."""

from dataclasses import fields
from typing import TYPE_CHECKING

from fleet.engine.dwdp.laws import DepLaw, DwdpLaw, generation_law
from fleet.engine.dwdp.layout import LayoutError, layout
from fleet.engine.dwdp.machine import DEEPSEEK_R1, GB200
from fleet.engine.dwdp.table_1 import REACHED
from fleet.engine.engine_model import EngineModel, TransferModel
from fleet.engine.law import SYNC_HOST_S, Law
from fleet.engine.profiles import UnknownProfile
from fleet.engine.scheduler import VLLM, WHOLE_PROMPTS, Limits
from fleet.kinds.kind import Launch, TwinModel
from fleet.kinds.kv_size import KvSizes, sizes_of
from fleet.kinds.serving import DECODE, PREFILL, role_of
from fleet.systems.dwdp.known_models import experts_of

if TYPE_CHECKING:
    from fleet.kinds.trtllm import TrtllmSpec

SOURCE = "DeepSeek-R1 NVFP4 on GB200: shares of the peaks from table 1 of arXiv 2604.01621"
CAUTIONS = (
    "the GPUs are taken for GB200 in one NVL72",
    "generation servers and KV transfers are rooflines: nothing of theirs was measured",
    "the GPUs of a server have one KV cache in the twin, and one each in TensorRT-LLM",
)
SPECULATIVE = "speculative decoding is not modelled"
_MOE, _GPU = DEEPSEEK_R1, GB200
_BLOCK = 32  # tokens, TensorRT-LLM's default
_KV_BYTES = (512 + 64) * _MOE.layers  # per token: MLA's latent and rope, FP8
_ATTENTION_WEIGHTS = _MOE.attention_weights * _MOE.attention_bytes_per_weight * _MOE.layers  # bytes, on each GPU
_OTHER_WEIGHTS = 6e9  # bytes on each GPU: embeddings, head, shared experts, dense layers
_ACTIVATIONS = 8e9  # bytes
_TRANSFERS = TransferModel(
    bytes_per_token=_KV_BYTES,
    idle_bytes_per_s=_GPU.link_bytes_per_s * REACHED.link,
    busy_bytes_per_s=_GPU.link_bytes_per_s * REACHED.link / 2,  # beside the copies of experts
)


def twin_model(spec: "TrtllmSpec", launch: Launch, gpus: int, connector: str) -> TwinModel:
    """Raises UnknownProfile."""
    model = spec.model or launch.model
    if experts_of(model) != _MOE.experts or "deepseek" not in model.lower():
        raise UnknownProfile(f"no constants for {model} on TensorRT-LLM; there are: DeepSeek-R1 and V3 on GB200")
    role = role_of(spec.role, spec.prefill_instances, launch.ordinal)
    law, ranks, experts = _law(spec, launch, role, gpus)
    batching = VLLM if spec.chunked_prefill else WHOLE_PROMPTS
    engine = EngineModel(
        law=law,
        kv_blocks=_kv_blocks(spec.free_gpu_memory_fraction, gpus, experts),
        limits=Limits(
            _BLOCK,
            spec.max_batch_size * ranks,
            spec.max_num_tokens * ranks,
            batching,
            async_scheduling=role == DECODE,
            ranks=ranks,
        ),
        window=spec.max_seq_len,
        role=role,
        connector=connector,
        transfers=_TRANSFERS if connector else None,
    )
    cautions = (*CAUTIONS, SPECULATIVE) if spec.speculative else CAUTIONS
    return TwinModel(engine, f"{SOURCE}; {_mode(spec)}", cautions, transferred=True)


def kv_sizes(model: str) -> KvSizes | None:
    known = experts_of(model) == _MOE.experts and "deepseek" in model.lower()
    return KvSizes(_KV_BYTES, _MOE.layers) if known else sizes_of(model)


def _mode(spec: "TrtllmSpec") -> str:
    return (
        f"context servers: DWDP{spec.dwdp_size}"
        if spec.dwdp_size > 1
        else f"servers: DEP{spec.prefill_tensor_parallel or spec.tensor_parallel}"
    )


def _law(spec: "TrtllmSpec", launch: Launch, role: str, gpus: int) -> tuple[Law, int, float]:
    """(law, GPUs with prompts of their own, experts in the memory of each GPU per layer)."""
    plain = generation_law(_MOE, _GPU, REACHED, gpus, SYNC_HOST_S, _KV_BYTES)
    shared = {field.name: getattr(plain, field.name) for field in fields(Law)}
    shared |= {"moe": _MOE, "gpu": _GPU, "reached": REACHED}
    if role == PREFILL and spec.dwdp_size > 1:
        try:
            group = layout(_MOE.experts, spec.dwdp_size, spec.dwdp_experts, spec.dwdp_prefetch)
        except LayoutError as error:
            raise UnknownProfile(str(error)) from None
        law = DwdpLaw(**shared, group=group, sliced=spec.dwdp_contention_opt)
        return law, 1, group.local + 2 * group.remote / _MOE.moe_layers
    if gpus > 1 and not spec.attention_dp:
        raise UnknownProfile("tensor parallelism of attention is not modelled: set attention_dp, or dwdp_size")
    experts = _MOE.experts / gpus
    if role == DECODE or gpus == 1:
        return plain, gpus, experts
    return DepLaw(**shared, ranks=gpus, seed=launch.ordinal), gpus, experts


def _kv_blocks(share: float, gpus: int, experts: float) -> int:
    """`share`: of the memory that weights and activations leave free."""
    weights = experts * _MOE.expert_bytes * _MOE.moe_layers + _OTHER_WEIGHTS + _ATTENTION_WEIGHTS
    free = _GPU.memory_bytes - weights - _ACTIVATIONS
    if free <= 0:
        raise UnknownProfile(
            f"{_MOE.name} needs {weights / 1e9:,.0f} GB on each of {gpus} GPUs, a {_GPU.name} has "
            f"{_GPU.memory_bytes / 1e9:,.0f}: spread it over more GPUs"
        )
    return int(share * free * gpus / (_KV_BYTES * _BLOCK))
