"""Models and GPUs of context servers, and the reachable shares of the GPUs' peaks."""

from dataclasses import dataclass, replace

from fleet.engine.dwdp.clock import UNLIMITED, PowerLimit

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A mixture of experts, with the sizes of its published configuration."""

    name: str
    layers: int
    moe_layers: int  # number of layers that are mixtures
    experts: int  # E, without the shared ones
    top_k: int  # experts that a token uses
    shared: int  # additional experts that every token uses
    hidden: int
    inner: int  # inner size of one expert
    bytes_per_weight: float  # bytes of expert weights, scales included
    attention_weights: float  # weights of one layer's projections
    attention_bytes_per_weight: float
    heads: int
    head_size: int  # sum of query and value sizes
    kv_bytes: float  # KV of a token over all layers
    full_layers: float = 1.0  # share of the layers that attend to the whole prompt, 0–1

    @property
    def expert_bytes(self) -> float:
        """Return b, the bytes of one expert."""
        return 3 * self.hidden * self.inner * self.bytes_per_weight

    @property
    def expert_flops(self) -> float:
        """Return the operations per token and expert."""
        return 6 * self.hidden * self.inner

    @property
    def pair_flops(self) -> float:
        """Return the operations of one layer's attention, per pair of a token and one before it."""
        return 2 * self.heads * self.head_size * self.full_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: dense peaks in 1/s and its link, one way."""

    name: str
    expert_flops: float  # peak in the precision of the experts
    projection_flops: float
    attention_flops: float
    memory_bytes_per_s: float
    memory_bytes: float
    link_bytes_per_s: float  # one-way rate: half of the figure that data sheets give for NVLink

    def serving(self, moe: Moe) -> "Gpu":
        """Return the GPU with its peak for the experts of the given model: the BF16 peak, or twice the BF16 peak for
        FP8.
        """
        bytes_per_weight = moe.bytes_per_weight
        widest = self.attention_flops if bytes_per_weight >= 2 else 2 * self.attention_flops
        return replace(self, expert_flops=min(self.expert_flops, widest)) if bytes_per_weight >= 1 else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """The reachable shares of the peaks, and the times that no peak explains."""

    experts: float = 1.0  # share of the arithmetic, 0–1
    projections: float = 1.0
    attention: float = 1.0
    other_ms_per_token: float = 0.0  # norms, routing, quantizing, over all layers
    link: float = 1.0  # eta: share of the link's rate that the copy engine reaches, 0–1
    all_to_all: float = 1.0  # share of an all-to-all's time that is spent sending a token to each of its experts
    power: PowerLimit = UNLIMITED
    # Spread between the GPUs of a DEP group that prompt lengths do not explain, over all layers
    skew_ms_per_token: float = 0.0


# MLA: 187M weights of projections; 128 heads of 192 for q and k, 128 for v.
DEEPSEEK_R1 = Moe(
    name="DeepSeek-R1 NVFP4",
    layers=61,
    moe_layers=58,
    experts=256,
    top_k=8,
    shared=1,
    hidden=7168,
    inner=2048,
    bytes_per_weight=0.5 + 1 / 16,  # NVFP4: a scale of a byte per 16
    attention_weights=187e6,
    attention_bytes_per_weight=1,
    heads=128,
    head_size=192 + 128,
    kv_bytes=(512 + 64) * 61,  # MLA's latent and rope, FP8
)
# 64 query heads and 8 KV heads, of size 64. Every second layer attends to only 128 tokens, and its attention is left
# out.
GPT_OSS_120B = Moe(
    name="gpt-oss-120b MXFP4",
    layers=36,
    moe_layers=36,
    experts=128,
    top_k=4,
    shared=0,
    hidden=2880,
    inner=2880,
    bytes_per_weight=0.5 + 1 / 32,  # MXFP4: a scale of a byte per 32
    attention_weights=2880 * (2 * 4096 + 2 * 512),
    attention_bytes_per_weight=2,
    heads=64,
    head_size=64 + 64,
    kv_bytes=2 * 8 * 64 * 2 * 18,  # layers that keep the whole prompt
    full_layers=0.5,
)

# NVIDIA's data sheets. NVLink 5: 1,800 GB/s both ways, NVLink 4: 900.
GB200 = Gpu(
    name="GB200",
    expert_flops=10e15,  # FP4
    projection_flops=5e15,  # FP8
    attention_flops=2.5e15,  # BF16
    memory_bytes_per_s=8e12,
    memory_bytes=186 * GB,
    link_bytes_per_s=900 * GB,
)
B200 = Gpu(
    name="B200",
    expert_flops=4.5e15,  # MXFP4 weights are multiplied in FP8
    projection_flops=2.25e15,  # BF16
    attention_flops=2.25e15,
    memory_bytes_per_s=8e12,
    memory_bytes=180 * GB,
    link_bytes_per_s=900 * GB,
)
H100 = Gpu(
    name="H100",
    expert_flops=1.979e15,  # FP8, because the GPU has no FP4
    projection_flops=1.979e15,
    attention_flops=0.9895e15,
    memory_bytes_per_s=3.35e12,
    memory_bytes=80 * GB,
    link_bytes_per_s=450 * GB,
)
H200 = replace(H100, name="H200", memory_bytes_per_s=4.8e12, memory_bytes=141 * GB)
B300 = replace(B200, name="B300", memory_bytes=270 * GB)
GPUS = {gpu.name: gpu for gpu in (GB200, B200, B300, H100, H200)}

PEAKS = Efficiencies()  # a roofline
