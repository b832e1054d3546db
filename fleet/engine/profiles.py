"""GPUs and models: sizes, peaks and the fitted constants of the step-time law.

Source of `FITS`, `MODELS` and `PEAKS`: least-squares fits to the public kernel tables of vLLM 0.24 in
aiconfigurator-core 0.12.0 (Apache-2.0), 2–7 % mean error; a test compares them with the data.

Qwen3-30B-A3B on one H20 is not in those tables. Its sizes are from its configuration (48 layers, 128 experts, 8 per
token). Its two arithmetic efficiencies are solved from two measured times to first token (vLLM 0.18, 8k and 128k
tokens); its memory efficiencies are those of the other models; its `t0_ms` is 0, as a measured step of 8 decodes is
shorter than the host time plus reading the weights.

A combination without a fit uses measured tables (tables.py), if Weir ships some. Otherwise it takes the efficiencies of
the nearest fit on the same GPU, and the profile states that (`transferred`). Against measurements of eight GPUs, the
efficiencies of four were within 4 %; for other models the fixed time of a step, 43 µs a layer, is up to 17 % too long.

The host's time depends on the version of the engine, so a profile names one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from fleet.engine.tables import DECODER, Tables, catalogue

Version = tuple[int, int]

VERSION: Version = (0, 24)
ASYNC_SINCE: Version = (0, 14)  # first version in which asynchronous scheduling is vLLM's default


class UnknownProfile(LookupError):
    """The GPU or model is unknown, or the model does not fit on this number of GPUs; the message
    lists the known ones.
    """


class NoRoom(UnknownProfile):
    """The model is known but does not fit on this number of GPUs."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    params: int  # number of weights in each token's matrix products
    weight_bytes: float  # the whole model without the embeddings, of which a step reads only a few rows
    kv_bytes_per_token: float  # whole model
    layers: int
    q_heads: int
    head_dim: int
    embedding_bytes: float
    hidden: int
    vocabulary: int  # number of tokens that the last product scores
    expert_bytes: float = 0.0  # expert weights alone; a step reads the experts that its tokens use
    expert_share: float = 0.0  # share of the experts that one token uses, 0–1
    norm_bytes: float = 0.0  # activation bytes that norms read and write on each GPU, per token
    # Activation bytes divided among the GPUs (gates, rotations, KV); 0: unknown, or part of the fit
    divided_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Peak:
    flops: float  # dense BF16 peak of one GPU, 1/s
    bandwidth: float  # device-memory bandwidth of one GPU, bytes/s
    memory: float  # device memory of one GPU as reported by the driver, bytes


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Shares of one GPU's memory, 0–1."""

    weights: float
    kv_cache: float
    reserve: float  # activations and CUDA graphs, which remain while the engine sleeps


@dataclass(frozen=True, slots=True)
class Fit:
    t0_ms: float  # fixed time of one step on the GPU
    gemm: float  # share of peak arithmetic in matrix products, 0–1
    prefill_attention: float  # share of peak arithmetic, 0–1
    weight_bandwidth: float  # share of peak bandwidth, 0–1
    kv_bandwidth: float  # share of peak bandwidth, 0–1
    allreduce_us_per_token: float
    allreduce_ms_per_step: float = 0.0  # reductions in a step with few tokens


@dataclass(frozen=True, slots=True)
class Profile:
    gpu: str
    model: str
    tp: int  # number of GPUs per instance
    sizes: ModelProfile
    peak: Peak
    fit: Fit | Tables
    version: Version = VERSION  # version of vLLM
    transferred: str = ""  # source of its efficiencies; empty: its own fit

    @property
    def tables(self) -> Tables | None:
        return self.fit if isinstance(self.fit, Tables) else None

    @property
    def about(self) -> str:
        """Return the source of the profile's constants, in one line."""
        tables = self.tables
        if tables is not None:
            return f"tables of {self.gpu}, {self.model}, {tables.layout} ({tables.source})"
        tp = f", tensor parallel {self.tp}" if self.tp > 1 else ""
        source = f"constants of {self.gpu}, {self.model}{tp}"
        return f"{source}, transferred from {self.transferred}" if self.transferred else source

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return caveats for display beside results of the profile."""
        return self.tables.notes if self.tables is not None else ()

    @property
    def family(self) -> str:
        """Return the family of the profile's tables; empty if the profile has a fit."""
        return self.tables.family if self.tables is not None else ""

    @property
    def has_experts(self) -> bool:
        """True if the data-parallel ranks compute each layer's experts together."""
        return self.sizes.expert_bytes > 0 if self.tables is None else self.tables.has_experts

    @property
    def is_async(self) -> bool:
        """True if the engine plans a step while the previous one runs."""
        return self.version >= ASYNC_SINCE


def _dense(
    layers: int,
    hidden: int,
    heads: tuple[int, int],
    inner: int,
    vocabulary: int,
    *,
    tied: bool = False,
    head_norms: bool = False,
) -> ModelProfile:
    """Return a dense bfloat16 model with gated products and grouped heads of size 128. `heads` is (number of query
    heads, number of key and value heads); with `head_norms`, queries and keys are normalized per head."""
    q_heads, kv_heads = heads
    attention = hidden * HEAD_DIM * (2 * q_heads + 2 * kv_heads)
    params, embedding = layers * (attention + 3 * hidden * inner), vocabulary * hidden
    return ModelProfile(
        params=params,
        weight_bytes=2 * (params + embedding),  # the last product uses a matrix as large as the embedding
        kv_bytes_per_token=4 * layers * kv_heads * HEAD_DIM,
        layers=layers,
        q_heads=q_heads,
        head_dim=HEAD_DIM,
        embedding_bytes=0.0 if tied else 2 * embedding,
        hidden=hidden,
        vocabulary=vocabulary,
        # Two norms per layer each read an output and the residual, and write both.
        norm_bytes=layers * 2 * 4 * 2 * hidden,
        # A gate reads two halves and writes one; rotations and norms of heads read and write queries and keys.
        divided_bytes=layers
        * (3 * 2 * inner + HEAD_DIM * ((8 if head_norms else 4) * (q_heads + kv_heads) + 8 * kv_heads)),
    )


HEAD_DIM = 128
MODELS = {
    "Llama-3.1-8B": _dense(32, 4096, (32, 8), 14_336, 128_256),
    "Llama-3.3-70B": _dense(80, 8192, (64, 8), 28_672, 128_256),
    "Mistral-7B": _dense(32, 4096, (32, 8), 14_336, 32_768),
    "Qwen2.5-7B": _dense(28, 3584, (28, 4), 18_944, 152_064),
    "Qwen2.5-72B": _dense(80, 8192, (64, 8), 29_568, 152_064),
    "Qwen3-4B": _dense(36, 2560, (32, 8), 9_728, 151_936, tied=True, head_norms=True),
    "Qwen3-8B": _dense(36, 4096, (32, 8), 12_288, 151_936, head_norms=True),
    "Qwen3-14B": _dense(40, 5120, (40, 8), 17_408, 151_936, head_norms=True),
    "Qwen3-32B": _dense(64, 5120, (64, 8), 25_600, 151_936, head_norms=True),
    "Qwen3-30B-A3B": ModelProfile(
        2_730_491_904, 60_441_493_504, 98_304, 48, 32, 128, 622_329_856, 2048, 151_936, 57_982_058_496, 8 / 128
    ),
}

# Memory: total_memory of the CUDA device, such as 79.2 GiB for an H100 "80 GB".
PEAKS = {
    "h100_sxm": Peak(989e12, 3.35e12, 85.0e9),
    "h200_sxm": Peak(989e12, 4.8e12, 150.1e9),
    "b200_sxm": Peak(2250e12, 7.7e12, 191.5e9),
    "h20_sxm": Peak(148e12, 4.0e12, 102.0e9),
}

# GPUs without a fit but with tables. Source: their data sheets; memory as for the others.
TABLED_PEAKS = {
    "a100_sxm": Peak(312e12, 2.039e12, 85.0e9),
    "b300_sxm": Peak(2250e12, 7.75e12, 286.7e9),
    "gb200": Peak(2500e12, 8.0e12, 197.5e9),
    "gb300": Peak(2500e12, 8.0e12, 296.2e9),
    "l40s": Peak(362e12, 0.864e12, 47.7e9),
    "rtx_pro_6000_server": Peak(467.8e12, 1.792e12, 102.0e9),
}
GPUS = PEAKS | TABLED_PEAKS

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

# What vLLM keeps besides weights and KV, by its own accounting: the peak of a dummy step, and what stays allocated. The
# peak is the larger of a forward pass over a whole step and of a sampler with all sequences' logits: up to 0.16 sorted
# (38 bytes a logit), from 0.17 on in 16 and in 32 bits, as probabilities and as random numbers. Sources: start-up logs
# of vLLM 0.15 to 0.19 on H100 (accuracy report of llm-d-planner; 1,024 sequences, steps of 8,192 tokens); for several
# GPUs also its older constants, and logs of 0.24; CUDA graphs and experts: vLLM 0.20.1 on an H200
# (docs/findings/gpu.md). docs/findings/tables/kv.csv has the rows.
VOCABULARY = 151_936  # tokens, for models whose vocabulary is unknown
SEQUENCES, STEP_TOKENS = 256, 8192  # for engines that state nothing else
FORWARD_BYTES_PER_TOKEN = 1e5
SAMPLER_BYTES = 0.2e9  # buffers beside the logits
EXPERTS_BYTES = 0.8e9  # workspace of a mixture of experts
GRAPH_BYTES_PER_LAYER = 16.5e6


@dataclass(frozen=True, slots=True)
class Kept:
    """The memory that versions of vLLM keep on each GPU, in bytes."""

    per_logit: float
    alone: float  # outside PyTorch, with one GPU
    together: float  # with several, buffers of reductions included
    graphs_per_layer: float = 0.0  # 0: CUDA graphs are captured in memory beyond the share that KV may use


KEPT: dict[Version, Kept] = {  # by the first version
    (0, 0): Kept(38.0, 0.14e9, 0.64e9),
    (0, 17): Kept(14.0, 0.14e9, 0.64e9),
    (0, 18): Kept(14.0, 0.27e9, 2.25e9),
    (0, 20): Kept(14.0, 0.27e9, 0.8e9, GRAPH_BYTES_PER_LAYER),
}


TP_SIZES = (1, 2, 4, 8)
T0_MS_PER_LAYER = 0.043  # fixed time of a step, for models without a fit
LEAST_KV_TOKENS = 16_384  # a model that leaves fewer KV tokens does not count as fitting


def profile(
    gpu: str = DEFAULT_GPU,
    model_profile: str = DEFAULT_MODEL,
    tp: int | None = None,
    version: Version = VERSION,
    *,
    dp: int = 1,
    expert_parallel: bool = False,
) -> Profile:
    """Return the profile. Names are case-insensitive. Without `tp`, the smallest tensor-parallel size that was fitted
    or measured is used, or else the smallest that fits.
    A fit takes precedence, then measured tables, then the efficiencies of another fit. `dp` and `expert_parallel` give
    the layout of a mixture of experts over its ranks; ranks of a dense model are independent. Raise UnknownProfile.
    """
    gpu_name, model = _spelled(gpu, GPUS), _spelled(model_profile, {**MODELS, **_tabled_models()})
    if gpu_name is None or model is None or tp not in (None, *TP_SIZES):
        raise UnknownProfile(_unknown(gpu, model_profile, tp))
    sizes = sorted(
        {size for known_gpu, known, size in FITS if (known_gpu, known) == (gpu_name, model)}
        | {one.tp for one in catalogue().values() if (one.gpu, one.name) == (gpu_name, model)}
    )
    failed: UnknownProfile | None = None
    for size in (tp,) if tp is not None else (*sizes, *TP_SIZES):
        try:
            made = _made(gpu_name, model, size, version, dp, expert_parallel=expert_parallel)
        except UnknownProfile as error:
            failed = failed or error
            continue
        if _fits(made):
            return made
        failed = failed or NoRoom(f"{model} with {LEAST_KV_TOKENS:,} tokens of KV does not fit on {tp or 8} {gpu_name}")
    raise failed or UnknownProfile(_unknown(gpu, model_profile, tp))


def profile_by(tables: Tables, version: Version = VERSION) -> Profile:
    """Return the profile of a user's tables. Raise UnknownProfile if the model does not fit on its GPUs."""
    if tables.gpu not in GPUS:
        raise UnknownProfile(f"no peaks of {tables.gpu}; there are: {', '.join(GPUS)}")
    made = Profile(tables.gpu, tables.name, tables.tp, _sizes(tables), GPUS[tables.gpu], tables, version)
    if not _fits(made):
        raise NoRoom(f"{tables.name} with {LEAST_KV_TOKENS:,} tokens of KV does not fit on {tables.tp} {tables.gpu}")
    return made


def read(text: str) -> Tables:
    """Parse a user's profile from JSON. Raise UnknownProfile."""
    try:
        return DECODER.decode(text)
    except msgspec.DecodeError as error:
        raise UnknownProfile(f"is not a profile as weir profile --json prints it: {error}") from None


def model_names() -> tuple[str, ...]:
    """Return the models for which `profile` succeeds on some GPU."""
    return (*MODELS, *(name for name in _tabled_models() if name not in MODELS))


def _tabled_models() -> dict[str, None]:
    return dict.fromkeys(one.name for one in catalogue().values())


def _spelled(name: str, known: Mapping[str, object]) -> str | None:
    return next((each for each in known if each.lower() == name.lower()), None)


def _unknown(gpu: str, model_profile: str, tp: int | None) -> str:
    wanted = f"{gpu} {model_profile}" + (f" tp{tp}" if tp is not None else "")
    sizes = ", ".join(map(str, TP_SIZES))
    return f"no constants for {wanted}; there are: {', '.join(GPUS)}; {', '.join(model_names())}; tp {sizes}"


def _made(gpu: str, model: str, tp: int, version: Version, dp: int, *, expert_parallel: bool) -> Profile:
    if (gpu, model, tp) in FITS and not expert_parallel:
        return _profile(gpu, model, tp, version)
    layouts = {one.dp: one for one in _tabled(gpu, model) if (one.tp, one.ep > 1) == (tp, expert_parallel)}
    dense = bool(layouts) and all(one.family == "dense" for one in layouts.values())
    tables = layouts.get(1 if dense else dp)
    if tables is not None:
        return Profile(gpu, model, tp, _sizes(tables), GPUS[gpu], tables, version)
    if model not in MODELS or expert_parallel or gpu not in PEAKS:
        raise UnknownProfile(_not_tabled(gpu, model, tp, dp, expert_parallel=expert_parallel))
    if not _donors(gpu, alone=tp == 1):
        raise UnknownProfile(f"no constants for reductions on {gpu}, which tp {tp} needs; allowed: tp 1")
    return _profile(gpu, model, tp, version)


def shared_layouts(gpu: str, model: str) -> list[tuple[int, int, bool]]:
    """Return the measured layouts with several ranks or distributed experts: (tp, ranks, experts are distributed)."""
    return sorted((one.tp, one.dp, one.ep > 1) for one in _tabled(gpu, model) if one.dp > 1 or one.ep > 1)


def _tabled(gpu: str, model: str) -> list[Tables]:
    return [one for one in catalogue().values() if (one.gpu, one.name) == (gpu, model)]


def _not_tabled(gpu: str, model: str, tp: int, dp: int, *, expert_parallel: bool) -> str:
    wanted = f"{model} on {gpu}, tp {tp}" + (f", dp {dp}" if dp > 1 else "")
    wanted += ", experts dealt among the GPUs" if expert_parallel else ""
    here = "; ".join(one.layout for one in _tabled(gpu, model))
    elsewhere = dict.fromkeys(one.gpu for one in catalogue().values() if one.name == model)
    known = f"known here: {here}" if here else f"known on: {', '.join(elsewhere) or 'no GPU'}"
    return f"no constants for {wanted}; {known}; make a profile of it with weir profile"


def _sizes(tables: Tables) -> ModelProfile:
    """Return the sizes of the whole model in the number format used on its GPUs. Values that only a fit needs are 0."""
    return ModelProfile(
        params=0,
        weight_bytes=tables.weight_bytes * tables.tp,
        kv_bytes_per_token=tables.kv_bytes_per_token * tables.tp,
        layers=tables.layers,
        q_heads=0,
        head_dim=0,
        embedding_bytes=0.0,
        hidden=0,
        vocabulary=tables.vocabulary or VOCABULARY,
    )


def _profile(gpu: str, model: str, tp: int, version: Version) -> Profile:
    sizes, peak = MODELS[model], PEAKS[gpu]
    if (gpu, model, tp) in FITS:
        return Profile(gpu, model, tp, sizes, peak, FITS[gpu, model, tp], version)
    name, size = min(_donors(gpu, alone=tp == 1), key=lambda donor: _distance(model, tp, *donor))
    fit = _transferred(FITS[gpu, name, size], MODELS[name], sizes, alone=tp == 1)
    return Profile(gpu, model, tp, sizes, peak, fit, version, f"{name} tp{size}")


def _donors(gpu: str, *, alone: bool) -> list[tuple[str, int]]:
    """Return the fits from which efficiencies can be taken; fits for one GPU lack reductions."""
    return [(name, size) for known, name, size in FITS if known == gpu and (size == 1) == alone]


def _distance(model: str, tp: int, other: str, size: int) -> tuple[bool, float, float]:
    """Rank fits: those of the same model first, then those with the same number of GPUs, then models of similar
    size."""
    gpus = abs(math.log2(tp / size))
    return other != model, gpus, abs(math.log(MODELS[other].params / MODELS[model].params))


def _transferred(fit: Fit, fitted: ModelProfile, sizes: ModelProfile, *, alone: bool) -> Fit:
    """Transfer a fit to another model; reductions move the activations of each layer."""
    width = 0.0 if alone else sizes.layers * sizes.hidden / (fitted.layers * fitted.hidden)
    return replace(
        fit,
        t0_ms=fit.t0_ms if sizes is fitted else T0_MS_PER_LAYER * sizes.layers,
        allreduce_us_per_token=fit.allreduce_us_per_token * width,
        allreduce_ms_per_step=0.0 if alone else fit.allreduce_ms_per_step * sizes.layers / fitted.layers,
    )


def kv_blocks(
    of: Profile,
    block_size: int = 16,
    used: float = MEMORY_USED,
    *,
    sequences: int = SEQUENCES,
    step_tokens: int = STEP_TOKENS,
) -> int:
    """Return the KV blocks that fit per GPU, counted as in vLLM: in the memory that weights, embeddings and what it
    keeps for steps of `step_tokens` and `sequences` leave. Raise NoRoom if they leave none."""
    blocks = int(_kv_tokens(of, used, sequences, step_tokens) / block_size)
    if blocks < 1:
        steps = f"{sequences:,} sequences and steps of {step_tokens:,} tokens"
        raise NoRoom(f"{of.model} with {steps} leaves no memory for KV in {used:g} of {of.tp} {of.gpu}")
    return blocks


def _kv_tokens(of: Profile, used: float, sequences: int, step_tokens: int) -> float:
    free = used * of.peak.memory - _held_bytes(of) - _kept_bytes(of, sequences, step_tokens)
    return free * of.tp / of.sizes.kv_bytes_per_token


def _fits(made: Profile) -> bool:
    return _kv_tokens(made, MEMORY_USED, SEQUENCES, STEP_TOKENS) >= LEAST_KV_TOKENS


def memory_of(
    of: Profile, blocks: int, block_size: int = 16, sequences: int = SEQUENCES, step_tokens: int = STEP_TOKENS
) -> GpuMemory:
    """Return the shares of each GPU's memory held by an engine with this number of KV blocks."""
    kv_bytes = blocks * block_size * of.sizes.kv_bytes_per_token / of.tp
    parts = (_held_bytes(of), kv_bytes, _kept_bytes(of, sequences, step_tokens))
    return GpuMemory(*(size / of.peak.memory for size in parts))


def kept_bytes(
    vocabulary: int,
    layers: int,
    tp: int,
    version: Version = VERSION,
    *,
    has_experts: bool = False,
    sequences: int = SEQUENCES,
    step_tokens: int = STEP_TOKENS,
) -> float:
    """Return the memory that vLLM keeps on each GPU besides weights and KV."""
    kept = KEPT[max(since for since in KEPT if since <= version)]
    sampler = kept.per_logit * vocabulary * min(sequences, step_tokens) + SAMPLER_BYTES
    peak = max(FORWARD_BYTES_PER_TOKEN * step_tokens, sampler)
    stays = (kept.together if tp > 1 else kept.alone) + kept.graphs_per_layer * layers
    return peak + stays + EXPERTS_BYTES * has_experts


def _kept_bytes(of: Profile, sequences: int, step_tokens: int) -> float:
    return kept_bytes(
        of.sizes.vocabulary,
        of.sizes.layers,
        of.tp,
        of.version,
        has_experts=of.has_experts,
        sequences=sequences,
        step_tokens=step_tokens,
    )


def _held_bytes(of: Profile) -> float:
    """Return the bytes of weights and embeddings on each GPU."""
    return (of.sizes.weight_bytes + of.sizes.embedding_bytes) / of.tp
