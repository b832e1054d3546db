"""DeepSeek-R1 on GB200, as servers of TensorRT-LLM: context servers in DEP or DWDP, and generation servers."""

from dataclasses import dataclass, fields
from typing import Any

from fleet.engine.dwdp.laws import DepLaw, DwdpLaw, generation_law
from fleet.engine.dwdp.layout import layout
from fleet.engine.dwdp.machine import DEEPSEEK_R1, GB200, Gpu, Moe
from fleet.engine.dwdp.table_1 import REACHED
from fleet.engine.engine_model import TransferModel
from fleet.engine.law import SYNC_HOST_S, Law

MOE, GPU = DEEPSEEK_R1, GB200
SOURCE = "DeepSeek-R1 NVFP4 on GB200: shares of the peaks from table 1 of arXiv 2604.01621"
KV_BYTES = (512 + 64) * MOE.layers  # per token: MLA's latent and rope, FP8
TRANSFERS = TransferModel(
    bytes_per_token=KV_BYTES,
    idle_bytes_per_s=GPU.link_bytes_per_s * REACHED.link,
    busy_bytes_per_s=GPU.link_bytes_per_s * REACHED.link / 2,  # beside the copies of experts
)
_OTHER_WEIGHTS = 6e9  # bytes on each GPU: embeddings, head, shared experts, dense layers
_ACTIVATIONS = 8e9  # bytes


class TooLarge(ValueError):
    """The weights do not fit."""


@dataclass(frozen=True, slots=True)
class Server:
    law: Law
    gpus: int
    ranks: int  # GPUs with prompts of their own
    experts: float  # experts per layer in the memory of each GPU

    def kv_tokens(self, share: float) -> float:
        """Raises TooLarge."""
        return kv_tokens(MOE, GPU, self.gpus, self.experts, share, KV_BYTES)


def kv_tokens(moe: Moe, gpu: Gpu, gpus: int, experts: float, share: float, kv_bytes: float) -> float:
    """Of all GPUs of a server together. `experts`: of a layer, in the memory of each; `share`: 0–1 of what weights and
    activations leave free; `kv_bytes`: of a token. Raises TooLarge."""
    attention = moe.attention_weights * moe.attention_bytes_per_weight * moe.layers
    weights = experts * moe.expert_bytes * moe.moe_layers + _OTHER_WEIGHTS + attention
    free = gpu.memory_bytes - weights - _ACTIVATIONS
    if free <= 0:
        raise TooLarge(
            f"{moe.name} needs {weights / 1e9:,.0f} GB on each of {gpus} GPUs, a {gpu.name} has "
            f"{gpu.memory_bytes / 1e9:,.0f}: spread it over more GPUs"
        )
    return share * free * gpus / kv_bytes


def generation_server(gpus: int) -> Server:
    law = generation_law(MOE, GPU, REACHED, gpus, SYNC_HOST_S, KV_BYTES)
    return Server(law, gpus, gpus, MOE.experts / gpus)


def dep_server(gpus: int, seed: int) -> Server:
    """All its GPUs. `seed`: of the spread of an iteration."""
    law = DepLaw(**_shared(gpus), ranks=gpus, seed=seed)
    return Server(law, gpus, gpus, MOE.experts / gpus)


def dwdp_server(size: int, local: int | None = None, prefetch: int | None = None, *, sliced: bool = False) -> Server:
    """One GPU of a group of `size`. Raises LayoutError."""
    group = layout(MOE.experts, size, local, prefetch)
    law = DwdpLaw(**_shared(1), group=group, sliced=sliced)
    return Server(law, 1, 1, group.local + 2 * group.remote / MOE.moe_layers)


def _shared(gpus: int) -> dict[str, Any]:
    plain = generation_law(MOE, GPU, REACHED, gpus, SYNC_HOST_S, KV_BYTES)
    return {field.name: getattr(plain, field.name) for field in fields(Law)} | {
        "moe": MOE,
        "gpu": GPU,
        "reached": REACHED,
    }
