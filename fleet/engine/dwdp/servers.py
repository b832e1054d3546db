"""DeepSeek-R1 on GB200, as servers of TensorRT-LLM: context servers in DEP or DWDP, and generation servers."""

from dataclasses import dataclass, fields
from typing import Any

from fleet.engine.dwdp.laws import DepLaw, DwdpLaw, generation_law
from fleet.engine.dwdp.layout import layout
from fleet.engine.dwdp.machine import DEEPSEEK_R1, GB200
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
_ATTENTION_WEIGHTS = MOE.attention_weights * MOE.attention_bytes_per_weight * MOE.layers  # bytes, on each GPU
_OTHER_WEIGHTS = 6e9  # bytes on each GPU: embeddings, head, shared experts, dense layers
_ACTIVATIONS = 8e9  # bytes


class TooLarge(ValueError):
    """The weights do not fit."""


@dataclass(frozen=True, slots=True)
class Server:
    law: Law
    gpus: int
    ranks: int  # GPUs with prompts of their own
    experts: float  # of a layer, in the memory of each GPU

    def kv_tokens(self, share: float) -> float:
        """`share`: 0–1 of the memory that weights and activations leave free. Raises TooLarge."""
        weights = self.experts * MOE.expert_bytes * MOE.moe_layers + _OTHER_WEIGHTS + _ATTENTION_WEIGHTS
        free = GPU.memory_bytes - weights - _ACTIVATIONS
        if free <= 0:
            raise TooLarge(
                f"{MOE.name} needs {weights / 1e9:,.0f} GB on each of {self.gpus} GPUs, a {GPU.name} has "
                f"{GPU.memory_bytes / 1e9:,.0f}: spread it over more GPUs"
            )
        return share * free * self.gpus / KV_BYTES


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
