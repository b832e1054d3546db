"""Context servers in DEP or DWDP, and generation servers as in TensorRT-LLM, for DeepSeek-R1 on GB200 or other models
and GPUs."""

from dataclasses import dataclass, fields
from typing import Any

from fleet.engine.dwdp.laws import DepLaw, DwdpLaw, generation_law
from fleet.engine.dwdp.layout import layout
from fleet.engine.dwdp.machine import DEEPSEEK_R1, GB200, Gpu, Moe
from fleet.engine.dwdp.table_1 import REACHED
from fleet.engine.engine_model import TransferModel
from fleet.engine.law import Law

MOE, GPU = DEEPSEEK_R1, GB200
SOURCE = "DeepSeek-R1 NVFP4 on GB200: shares of the peaks from table 1 of arXiv 2604.01621"
TRANSFERS = TransferModel(
    bytes_per_token=MOE.kv_bytes,
    idle_bytes_per_s=GPU.link_bytes_per_s * REACHED.link,
    busy_bytes_per_s=GPU.link_bytes_per_s * REACHED.link / 2,  # half of the link, which copies of experts share
)
_OTHER_WEIGHTS = 6e9  # bytes per GPU: embeddings, head, shared experts, dense layers
_ACTIVATIONS = 8e9  # bytes per GPU


class TooLarge(ValueError):
    """The weights do not fit."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A model on a GPU."""

    moe: Moe = MOE
    gpu: Gpu = GPU

    @property
    def about(self) -> str:
        """Return the source of the server's constants."""
        if self == Machine():
            return SOURCE
        return f"{self.moe.name} on {self.gpu.name}: data sheets, with the shares of the peaks of {SOURCE}"


R1 = Machine()


@dataclass(frozen=True, slots=True)
class GenerationServer:
    law: Law
    gpus: int
    ranks: int  # GPUs with prompts of their own
    experts: float  # experts per layer in the memory of each GPU
    machine: Machine

    def kv_tokens(self, share: float) -> float:
        """Return the tokens of KV that fit. Raise TooLarge."""
        moe = self.machine.moe
        return kv_tokens(moe, self.machine.gpu, self.gpus, self.experts, share, moe.kv_bytes)


def kv_tokens(moe: Moe, gpu: Gpu, gpus: int, experts: float, share: float, kv_bytes: float) -> float:
    """Return the KV tokens on all GPUs of a server together. `experts` is the number of experts per layer in the memory
    of each GPU; `share` is KV's part of the memory left by weights and activations, 0–1; `kv_bytes` is per token. Raise
    TooLarge."""
    attention = moe.attention_weights * moe.attention_bytes_per_weight * moe.layers
    weights = experts * moe.expert_bytes * moe.moe_layers + _OTHER_WEIGHTS + attention
    free = gpu.memory_bytes - weights - _ACTIVATIONS
    if free <= 0:
        raise TooLarge(
            f"{moe.name} needs {weights / 1e9:,.0f} GB on each of {gpus} GPUs, a {gpu.name} has "
            f"{gpu.memory_bytes / 1e9:,.0f}: spread it over more GPUs"
        )
    return share * free * gpus / kv_bytes


def generation_server(gpus: int, of: Machine = R1) -> GenerationServer:
    return GenerationServer(_plain(gpus, of), gpus, gpus, of.moe.experts / gpus, of)


def dep_server(gpus: int, seed: int, of: Machine = R1, hot_experts: float = 0.0) -> GenerationServer:
    """Return the server with all the group's GPUs. `seed` seeds the spread of an iteration."""
    law = DepLaw(**_shared(gpus, of), ranks=gpus, seed=seed, hot_experts=hot_experts)
    return GenerationServer(law, gpus, gpus, of.moe.experts / gpus, of)


def dwdp_server(
    size: int, local: int | None = None, prefetch: int | None = None, *, sliced: bool = False, of: Machine = R1
) -> GenerationServer:
    """Return the server of one GPU in a group of `size`. Raise LayoutError."""
    group = layout(of.moe.experts, size, local, prefetch)
    law = DwdpLaw(**_shared(1, of), group=group, sliced=sliced)
    return GenerationServer(law, 1, 1, group.local + 2 * group.remote / of.moe.moe_layers, of)


def _plain(gpus: int, of: Machine) -> Law:
    return generation_law(of.moe, of.gpu, REACHED, gpus, of.moe.kv_bytes)


def _shared(gpus: int, of: Machine) -> dict[str, Any]:
    plain = _plain(gpus, of)
    return {field.name: getattr(plain, field.name) for field in fields(Law)} | {
        "moe": of.moe,
        "gpu": of.gpu,
        "reached": REACHED,
    }
