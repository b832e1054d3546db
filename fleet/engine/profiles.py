"""GPUs and models: sizes, peaks and the fitted constants of the step-time law.

Source of `FITS`, `MODELS` and `PEAKS`: least-squares fits to the public kernel tables of vLLM 0.24 in
aiconfigurator-core 0.12.0 (Apache-2.0), 2–7 % mean error; a test compares them with the data.

Qwen3-30B-A3B on one H20 is not in those tables. Its sizes are from its configuration (48 layers, 128 experts, 8 per
token). Its two arithmetic efficiencies are solved from two measured times to first token (vLLM 0.18, 8k and 128k
tokens); its memory efficiencies are those of the other models; its `t0_ms` is 0, as a measured step of 8 decodes is
shorter than the host time plus reading the weights.

The host's time depends on the version of the engine, so a profile names one.
"""

from dataclasses import dataclass

Version = tuple[int, int]

VERSION: Version = (0, 24)
ASYNC_SINCE: Version = (0, 14)  # asynchronous scheduling is vLLM's default


class UnknownProfile(LookupError):
    """No constants for this GPU, model and tensor-parallel size; the message lists the known ones."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    params: int  # weights in each token's matrix products
    weight_bytes: float  # of the whole model, without the embeddings: a step reads a few rows of those
    kv_bytes_per_token: float  # of the whole model
    layers: int
    q_heads: int
    head_dim: int
    embedding_bytes: float
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

    @property
    def is_async(self) -> bool:
        """Whether the engine plans a step while the step before it runs."""
        return self.version >= ASYNC_SINCE


MODELS = {
    "Llama-3.1-8B": ModelProfile(6_979_321_856, 15_009_316_864, 131_072, 32, 32, 128, 1_050_673_152),
    "Llama-3.3-70B": ModelProfile(68_451_041_280, 139_003_428_864, 327_680, 80, 64, 128, 2_101_346_304),
    "Qwen3-8B": ModelProfile(6_945_767_424, 15_136_194_560, 147_456, 36, 32, 128, 1_244_659_712),
    "Qwen3-32B": ModelProfile(31_205_621_760, 63_967_068_160, 262_144, 64, 64, 128, 1_555_824_640),
    "Qwen3-30B-A3B": ModelProfile(
        2_730_491_904, 60_441_493_504, 98_304, 48, 32, 128, 622_329_856, 57_982_058_496, 8 / 128
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


def profile(
    gpu: str = DEFAULT_GPU, model_profile: str = DEFAULT_MODEL, tp: int | None = None, version: Version = VERSION
) -> Profile:
    """Names in any case; without `tp`, the smallest calibrated tensor-parallel size.

    Raises UnknownProfile.
    """
    for known_gpu, known_model, known_tp in sorted(FITS):
        named = (known_gpu.lower(), known_model.lower()) == (gpu.lower(), model_profile.lower())
        if named and tp in (None, known_tp):
            fit = FITS[known_gpu, known_model, known_tp]
            return Profile(known_gpu, known_model, known_tp, MODELS[known_model], PEAKS[known_gpu], fit, version)
    wanted = f"{gpu} {model_profile}" + (f" tp{tp}" if tp is not None else "")
    known = ", ".join(f"{g} {m} tp{t}" for g, m, t in sorted(FITS))
    raise UnknownProfile(f"no calibration for {wanted}; there are: {known}")


def kv_blocks(of: Profile, block_size: int = 16) -> int:
    """KV blocks that fit per GPU, as vLLM counts them: what the weights, embeddings included, and activations leave."""
    weights = (of.sizes.weight_bytes + of.sizes.embedding_bytes) / of.tp
    free = MEMORY_USED * of.peak.memory - weights - ACTIVATION_BYTES
    return int(free / (of.sizes.kv_bytes_per_token / of.tp * block_size))
