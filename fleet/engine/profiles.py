"""GPUs and models: sizes, peaks and the fitted constants of the step-time law.

Source of `FITS`, `MODELS` and `PEAKS`: least-squares fits to the public kernel tables of vLLM 0.24 in
aiconfigurator-core 0.12.0 (Apache-2.0), 2–7 % mean error; a test compares them with the data.

Qwen3-30B-A3B on one H20 is not in those tables. Its sizes are from its configuration (48 layers, 128 experts, 8 per
token). Its two arithmetic efficiencies are solved from two measured times to first token (vLLM 0.18, 8k and 128k
tokens); its memory efficiencies are those of the other models; its `t0_ms` is 0, as a measured step of 8 decodes is
shorter than the host time plus reading the weights.

A model or a number of GPUs that nothing was fitted to takes the efficiencies of the nearest fit on the same GPU, and
the profile says so (`transferred`). Against measurements of eight GPUs, the efficiencies of four were within 4 %; for
other models the fixed time of a step, 43 µs a layer, is up to 17 % too long.

The host's time depends on the version of the engine, so a profile names one.
"""

import math
from dataclasses import dataclass, replace

Version = tuple[int, int]

VERSION: Version = (0, 24)
ASYNC_SINCE: Version = (0, 14)  # asynchronous scheduling is vLLM's default


class UnknownProfile(LookupError):
    """An unknown GPU or model, or it does not fit on so many GPUs; the message lists the known ones."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    params: int  # weights in each token's matrix products
    weight_bytes: float  # of the whole model, without the embeddings: a step reads a few rows of those
    kv_bytes_per_token: float  # of the whole model
    layers: int
    q_heads: int
    head_dim: int
    embedding_bytes: float
    hidden: int
    expert_bytes: float = 0.0  # of the weights, those in experts: a step reads the experts that its tokens use
    expert_share: float = 0.0  # 0–1 share of the experts that one token uses


@dataclass(frozen=True, slots=True)
class Peak:
    flops: float  # dense bf16, 1/s, one GPU
    bandwidth: float  # bytes/s of device memory, one GPU
    memory: float  # bytes of device memory that the driver reports, one GPU


@dataclass(frozen=True, slots=True)
class Fit:
    t0_ms: float  # fixed time of one step on the GPU
    gemm: float  # 0–1 share of peak arithmetic in matrix products
    prefill_attention: float  # 0–1 share of peak arithmetic
    weight_bandwidth: float  # 0–1 share of peak bandwidth
    kv_bandwidth: float  # 0–1 share of peak bandwidth
    allreduce_us_per_token: float
    allreduce_ms_per_step: float = 0.0  # of a step with few tokens


@dataclass(frozen=True, slots=True)
class Profile:
    gpu: str
    model: str
    tp: int  # GPUs one instance spans
    sizes: ModelProfile
    peak: Peak
    fit: Fit
    version: Version = VERSION  # of vLLM
    transferred: str = ""  # the fit that its efficiencies are from; empty: fitted itself

    @property
    def is_async(self) -> bool:
        """Whether the engine plans a step while the step before it runs."""
        return self.version >= ASYNC_SINCE


def _dense(
    layers: int, hidden: int, heads: tuple[int, int], inner: int, vocabulary: int, *, tied: bool = False
) -> ModelProfile:
    """In bfloat16, with gated products and grouped heads of 128; `heads`: of queries, and of keys and values."""
    q_heads, kv_heads = heads
    attention = hidden * HEAD_DIM * (2 * q_heads + 2 * kv_heads)
    params, embedding = layers * (attention + 3 * hidden * inner), vocabulary * hidden
    return ModelProfile(
        params=params,
        weight_bytes=2 * (params + embedding),  # the last product is with a matrix of the embedding's size
        kv_bytes_per_token=4 * layers * kv_heads * HEAD_DIM,
        layers=layers,
        q_heads=q_heads,
        head_dim=HEAD_DIM,
        embedding_bytes=0.0 if tied else 2 * embedding,
        hidden=hidden,
    )


HEAD_DIM = 128
MODELS = {
    "Llama-3.1-8B": _dense(32, 4096, (32, 8), 14_336, 128_256),
    "Llama-3.3-70B": _dense(80, 8192, (64, 8), 28_672, 128_256),
    "Mistral-7B": _dense(32, 4096, (32, 8), 14_336, 32_768),
    "Qwen2.5-7B": _dense(28, 3584, (28, 4), 18_944, 152_064),
    "Qwen2.5-72B": _dense(80, 8192, (64, 8), 29_568, 152_064),
    "Qwen3-4B": _dense(36, 2560, (32, 8), 9_728, 151_936, tied=True),
    "Qwen3-8B": _dense(36, 4096, (32, 8), 12_288, 151_936),
    "Qwen3-14B": _dense(40, 5120, (40, 8), 17_408, 151_936),
    "Qwen3-32B": _dense(64, 5120, (64, 8), 25_600, 151_936),
    "Qwen3-30B-A3B": ModelProfile(
        2_730_491_904, 60_441_493_504, 98_304, 48, 32, 128, 622_329_856, 2048, 57_982_058_496, 8 / 128
    ),
}

# Memory: total_memory of the CUDA device, such as 79.2 GiB for an H100 "80 GB".
PEAKS = {
    "h100_sxm": Peak(989e12, 3.35e12, 85.0e9),
    "h200_sxm": Peak(989e12, 4.8e12, 150.1e9),
    "b200_sxm": Peak(2250e12, 7.7e12, 191.5e9),
    "h20_sxm": Peak(148e12, 4.0e12, 102.0e9),
}

FITS = {
    ("h100_sxm", "Llama-3.1-8B", 1): Fit(1.372, 0.789, 0.588, 0.92, 0.874, 0.0),
    ("h100_sxm", "Qwen3-8B", 1): Fit(1.523, 0.786, 0.594, 0.92, 0.877, 0.0),
    ("h100_sxm", "Qwen3-32B", 1): Fit(3.865, 0.786, 0.529, 0.92, 0.834, 0.0),
    ("h100_sxm", "Qwen3-32B", 2): Fit(3.054, 0.768, 0.648, 0.92, 0.864, 5.361, 0.564),
    ("h100_sxm", "Qwen3-32B", 4): Fit(2.697, 0.72, 1.0, 0.92, 0.864, 6.149, 0.616),
    ("h100_sxm", "Llama-3.3-70B", 4): Fit(3.482, 0.76, 0.73, 0.92, 0.878, 11.931, 0.773),
    ("h200_sxm", "Llama-3.1-8B", 1): Fit(1.369, 0.756, 0.562, 0.92, 0.862, 0.0),
    ("h200_sxm", "Qwen3-8B", 1): Fit(1.484, 0.757, 0.594, 0.92, 0.86, 0.0),
    ("h200_sxm", "Qwen3-32B", 1): Fit(4.134, 0.791, 0.528, 0.915, 0.821, 0.0),
    ("h200_sxm", "Qwen3-32B", 2): Fit(3.371, 0.775, 0.577, 0.92, 0.873, 5.029, 0.591),
    ("h200_sxm", "Qwen3-32B", 4): Fit(2.868, 0.739, 0.65, 0.92, 0.859, 6.007, 0.612),
    ("h200_sxm", "Llama-3.3-70B", 4): Fit(3.92, 0.772, 0.424, 0.92, 0.889, 11.749, 0.771),
    ("b200_sxm", "Llama-3.1-8B", 1): Fit(1.066, 0.683, 0.55, 0.92, 0.921, 0.0),
    ("b200_sxm", "Qwen3-8B", 1): Fit(1.138, 0.668, 0.595, 0.92, 0.92, 0.0),
    ("b200_sxm", "Qwen3-32B", 1): Fit(1.493, 0.696, 0.483, 0.795, 0.897, 0.0),
    ("b200_sxm", "Qwen3-32B", 2): Fit(3.087, 0.594, 1.0, 0.92, 0.878, 2.773, 0.898),
    ("b200_sxm", "Qwen3-32B", 4): Fit(2.971, 0.552, 1.0, 0.92, 0.835, 3.318, 0.92),
    ("b200_sxm", "Llama-3.3-70B", 4): Fit(3.725, 0.586, 1.0, 0.92, 0.814, 6.583, 1.178),
    ("h20_sxm", "Qwen3-30B-A3B", 1): Fit(0.0, 0.83, 0.895, 0.92, 0.87, 0.0),
}

DEFAULT_GPU = "h100_sxm"
DEFAULT_MODEL = "Llama-3.1-8B"

MEMORY_USED = 0.9  # share of device memory: vLLM's gpu_memory_utilization
ACTIVATION_BYTES = 1.3e9  # of an 8192-token step, and CUDA graphs


TP_SIZES = (1, 2, 4, 8)
T0_MS_PER_LAYER = 0.043  # of models that nothing was fitted to
LEAST_KV_TOKENS = 16_384  # else the model does not fit


def profile(
    gpu: str = DEFAULT_GPU, model_profile: str = DEFAULT_MODEL, tp: int | None = None, version: Version = VERSION
) -> Profile:
    """Names in any case; without `tp`, the smallest tensor-parallel size that was fitted, else that fits.

    Raises UnknownProfile.
    """
    gpu_name = next((name for name in PEAKS if name.lower() == gpu.lower()), None)
    model = next((name for name in MODELS if name.lower() == model_profile.lower()), None)
    if gpu_name is None or model is None or tp not in (None, *TP_SIZES):
        raise UnknownProfile(_unknown(gpu, model_profile, tp))
    fitted = sorted(size for known_gpu, known_model, size in FITS if (known_gpu, known_model) == (gpu_name, model))
    for size in (tp,) if tp is not None else (*fitted, *TP_SIZES):
        if not _donors(gpu_name, alone=size == 1):
            raise UnknownProfile(f"no constants for reductions on {gpu_name}, which tp {size} needs; allowed: tp 1")
        made = _profile(gpu_name, model, size, version)
        if kv_blocks(made, 1) >= LEAST_KV_TOKENS:
            return made
    raise UnknownProfile(f"{model} with {LEAST_KV_TOKENS:,} tokens of KV does not fit on {tp or 8} {gpu_name}")


def _unknown(gpu: str, model_profile: str, tp: int | None) -> str:
    wanted = f"{gpu} {model_profile}" + (f" tp{tp}" if tp is not None else "")
    sizes = ", ".join(map(str, TP_SIZES))
    return f"no constants for {wanted}; there are: {', '.join(PEAKS)}; {', '.join(MODELS)}; tp {sizes}"


def _profile(gpu: str, model: str, tp: int, version: Version) -> Profile:
    sizes, peak = MODELS[model], PEAKS[gpu]
    if (gpu, model, tp) in FITS:
        return Profile(gpu, model, tp, sizes, peak, FITS[gpu, model, tp], version)
    name, size = min(_donors(gpu, alone=tp == 1), key=lambda donor: _distance(model, tp, *donor))
    fit = _transferred(FITS[gpu, name, size], MODELS[name], sizes, alone=tp == 1)
    return Profile(gpu, model, tp, sizes, peak, fit, version, f"{name} tp{size}")


def _donors(gpu: str, *, alone: bool) -> list[tuple[str, int]]:
    """Fits of one GPU know nothing of reductions."""
    return [(name, size) for known, name, size in FITS if known == gpu and (size == 1) == alone]


def _distance(model: str, tp: int, other: str, size: int) -> tuple[bool, float, float]:
    """Fits of the same model are nearest, then of the same number of GPUs, then of a model of the same size."""
    gpus = abs(math.log2(tp / size))
    return other != model, gpus, abs(math.log(MODELS[other].params / MODELS[model].params))


def _transferred(fit: Fit, fitted: ModelProfile, sizes: ModelProfile, *, alone: bool) -> Fit:
    """Reductions move the activations of each layer."""
    width = 0.0 if alone else sizes.layers * sizes.hidden / (fitted.layers * fitted.hidden)
    return replace(
        fit,
        t0_ms=fit.t0_ms if sizes is fitted else T0_MS_PER_LAYER * sizes.layers,
        allreduce_us_per_token=fit.allreduce_us_per_token * width,
        allreduce_ms_per_step=0.0 if alone else fit.allreduce_ms_per_step * sizes.layers / fitted.layers,
    )


def kv_blocks(of: Profile, block_size: int = 16) -> int:
    """KV blocks that fit per GPU, as vLLM counts them: what the weights, embeddings included, and activations leave."""
    weights = (of.sizes.weight_bytes + of.sizes.embedding_bytes) / of.tp
    free = MEMORY_USED * of.peak.memory - weights - ACTIVATION_BYTES
    return int(free / (of.sizes.kv_bytes_per_token / of.tp * block_size))
