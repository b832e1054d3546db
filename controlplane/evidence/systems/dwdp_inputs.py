"""The inputs of DWDP's page, and the model's parameters derived from them."""

from dataclasses import dataclass, replace
from typing import Any

from fleet.engine.dwdp.clock import PowerLimit
from fleet.engine.dwdp.layout import LayoutError, layout
from fleet.engine.dwdp.machine import GPUS, Efficiencies, Gpu, Moe
from fleet.engine.dwdp.mixtures import MOES
from fleet.engine.dwdp.phase import Phase, Prompts
from fleet.engine.dwdp.table_1 import FILLED, POWER
from fleet.kinds.options.option import option
from fleet.systems.dwdp.planning import Demand
from router.contract.values.problem import Problem

PETA, TERA, GIGA = 1e15, 1e12, 1e9


def _of_model(title: str, minimum: float, maximum: float, *, unit: str = "", kind: str = "int") -> Any:
    text = "Left out: of the model."
    return option(None, title, text, unit=unit, kind=kind, range=(minimum, maximum))


def _of_gpu(title: str, unit: str, minimum: float, maximum: float, text: str = "") -> Any:
    words = f"{text} Left out: of the GPU.".strip()
    return option(None, title, words, unit=unit, kind="float", range=(minimum, maximum))


def _share(default: float, title: str, text: str) -> Any:
    return option(default, title, text, range=(0.01, 1))


@dataclass(frozen=True)
class DwdpInputs:
    model: str = option("DeepSeek-R1", "Model", "Its published sizes.", choices=tuple(MOES))
    gpu: str = option("GB200", "GPU", "Data sheet.", choices=tuple(GPUS))
    ranks: int = option(4, "DWDP group", "N: hold a layer's experts.", unit="GPUs", range=(2, 72))
    dep_ranks: int = option(4, "DEP group", "They wait for each other.", unit="GPUs", range=(2, 72))
    max_tokens: int = option(
        32_768,
        "Tokens of an iteration",
        "max_num_tokens (MNT): widens the window.",
        unit="tokens",
        range=(16, 1_048_576),
    )
    prompt_tokens: int = option(7_373, "Prompt", "Mean, to compute.", unit="tokens", range=(16, 1_048_576))
    prompt_variation: float = option(
        6.4, "Variation of prompts", "Standard deviation over mean.", unit="%", range=(0, 200)
    )
    link_gb_per_s: float | None = _of_gpu("Link, one way", "GB/s", 0.1, 10_000, "Half a data sheet's NVLink.")
    slices: bool = option(False, "Slices", "Copies take turns (contention_opt).")
    slice_mib: float = option(2.0, "Slice", "The paper has 1 MB, TensorRT-LLM 2 MiB.", unit="MiB", range=(0.01, 1_024))
    in_flight: int = option(2, "Slices in flight", "Of a GPU's copy engine: 2 in the paper.", range=(1, 64))
    slice_us: float = option(1.0, "Set-up of a slice", "Not published: assumed.", unit="µs", range=(0, 10_000))
    merged: bool = option(False, "Merged buffer", "One buffer, copied before the products.")
    chunked: bool = option(False, "Chunked prefill", "TensorRT-LLM refuses it with DWDP.")
    chunk_tokens: int = option(8_192, "Chunk", "Of all prompts of an iteration.", unit="tokens", range=(16, 1_048_576))
    gather_cores: float = option(15.0, "Cores of an all-gather", "What NCCL takes: assumed.", unit="%", range=(0, 90))
    # Demand
    prompts_per_s: float = option(12.0, "Prompts", "Of all users.", unit="1/s", range=(0.001, 100_000))
    generation_gpus: int = option(12, "Generation GPUs", "The same for both; they stay DEP.", range=(1, 100_000))
    output_tokens: int = option(1_000, "Answer", "Mean.", unit="tokens", range=(1, 1_048_576))
    user_tokens_per_s: float = option(
        50.0, "Speed of an answer", "TPS/user while it is written.", unit="tokens/s", range=(0.1, 10_000)
    )
    clients: int = option(512, "Clients", "In a closed loop; 0: not played.", range=(0, 2_048))
    max_load: float = option(85.0, "Highest load", "Of the context GPUs' throughput.", unit="%", range=(1, 99))
    # Experts
    held: int | None = option(None, "Experts held", "L of each GPU; left out: E - (N - 1)·P.", range=(1, 4_096))
    copied: int | None = option(
        None, "Experts copied", "P from each other GPU; left out: floor(E/N).", range=(1, 4_096)
    )
    hot_experts: float = option(0.0, "Hot experts", "Zipf exponent of the router's choice; 0: uniform.", range=(0, 3))
    # Model
    experts: int | None = _of_model("Experts of a layer", 2, 4_096)
    top_k: int | None = _of_model("Experts of a token", 1, 4_096)
    shared: int | None = _of_model("Shared experts", 0, 64)
    layers: int | None = _of_model("Layers", 1, 1_024)
    moe_layers: int | None = _of_model("Layers with experts", 1, 1_024)
    hidden: int | None = _of_model("Hidden size", 16, 1_048_576)
    inner: int | None = _of_model("Size of an expert", 16, 1_048_576)
    attention_mweights: float | None = _of_model(
        "Projections of a layer", 0.01, 1e6, unit="million weights", kind="float"
    )
    heads: int | None = _of_model("Attention heads", 1, 4_096)
    head_size: int | None = _of_model("Query and value of a head", 2, 65_536)
    kv_kib: float | None = _of_model("KV of a token", 0.1, 10_000, unit="KiB", kind="float")
    bytes_per_weight: float | None = _of_model("Weight of an expert", 0.1, 8, unit="bytes", kind="float")
    # GPU
    expert_pflops: float | None = _of_gpu("Peak for experts", "PFLOP/s", 0.001, 1_000)
    projection_pflops: float | None = _of_gpu("Peak for projections", "PFLOP/s", 0.001, 1_000)
    attention_pflops: float | None = _of_gpu("Peak for attention", "PFLOP/s", 0.001, 1_000)
    memory_tb_per_s: float | None = _of_gpu("Memory bandwidth", "TB/s", 0.01, 1_000)
    memory_gb: float | None = _of_gpu("Memory", "GB", 1, 10_000)
    # Shares of the peaks
    link_share: float = _share(0.714, "Link reached", "η of the copies: table 1 of the paper.")
    expert_share: float = _share(0.352, "Peak reached by experts", "Of the arithmetic: table 1 of the paper.")
    attention_share: float = _share(0.806, "Peak reached by attention", "Table 1 of the paper.")
    projection_share: float = _share(1.0, "Peak reached by projections", "Table 1 has the rest in other computing.")
    all_to_all_share: float = option(
        0.517, "All-to-all", "Times a copy of each token to each of its experts.", range=(0, 10)
    )
    other_us: float = option(8.2, "Other computing", "Of all layers: table 1.", unit="µs/token", range=(0, 10_000))
    computing_draw: float = option(1.2, "Draw of computing", "Of the power limit; measured on an H200.", range=(0, 3))
    waiting_draw: float = option(0.73, "Draw of waiting", "Of the power limit; measured on an H200.", range=(0, 0.99))
    copying_draw: float = option(0.052, "Draw of copying", "Of the power limit, added: table 1.", range=(0, 1))
    skew_us: float = option(
        4.771,
        "Spread of a DEP group",
        "Besides prompt lengths; fitted to table 3c.",
        unit="µs/token",
        range=(0, 10_000),
    )
    filled: float = option(FILLED * 100, "Filled", "Of an iteration: prompts stay whole.", unit="%", range=(1, 100))
    between_ms: float = option(
        0.0, "Between iterations", "Not published: 751 gives table 3's TPS/GPU.", unit="ms", range=(0, 100_000)
    )


def moe_of(inputs: DwdpInputs) -> Moe:
    names = ("experts", "top_k", "shared", "layers", "moe_layers", "hidden", "inner", "bytes_per_weight")
    given = {name: getattr(inputs, name) for name in (*names, "heads", "head_size")}
    if inputs.attention_mweights is not None:
        given["attention_weights"] = inputs.attention_mweights * 1e6
    return replace(MOES[inputs.model], **{name: value for name, value in given.items() if value is not None})


def kv_bytes_of(inputs: DwdpInputs) -> float:
    """Return the KV bytes of a token in all layers."""
    return MOES[inputs.model].kv_bytes if inputs.kv_kib is None else inputs.kv_kib * 1024


def gpu_of(inputs: DwdpInputs) -> Gpu:
    gpu = GPUS[inputs.gpu].serving(moe_of(inputs))
    return replace(
        gpu,
        expert_flops=_given(inputs.expert_pflops, PETA, gpu.expert_flops),
        projection_flops=_given(inputs.projection_pflops, PETA, gpu.projection_flops),
        attention_flops=_given(inputs.attention_pflops, PETA, gpu.attention_flops),
        memory_bytes_per_s=_given(inputs.memory_tb_per_s, TERA, gpu.memory_bytes_per_s),
        memory_bytes=_given(inputs.memory_gb, GIGA, gpu.memory_bytes),
        link_bytes_per_s=_given(inputs.link_gb_per_s, GIGA, gpu.link_bytes_per_s),
    )


def _given(value: float | None, unit: float, own: float) -> float:
    return own if value is None else value * unit


def phase_of(inputs: DwdpInputs) -> Phase:
    """Return the phase. Raise LayoutError."""
    moe = moe_of(inputs)
    reached = Efficiencies(
        experts=inputs.expert_share,
        projections=inputs.projection_share,
        attention=inputs.attention_share,
        other_ms_per_token=inputs.other_us / 1e3,
        link=inputs.link_share,
        all_to_all=inputs.all_to_all_share,
        power=PowerLimit(inputs.computing_draw, inputs.waiting_draw, inputs.copying_draw, POWER.measured_at),
        skew_ms_per_token=inputs.skew_us / 1e3,
    )
    return Phase(
        moe,
        gpu_of(inputs),
        reached,
        layout(moe.experts, inputs.ranks, inputs.held, inputs.copied),
        inputs.dep_ranks,
        Prompts(inputs.prompt_tokens, inputs.prompt_variation / 100),
        inputs.max_tokens,
        inputs.filled / 100,
        inputs.slices,
        inputs.merged,
        inputs.slice_mib * 2**20,
        inputs.in_flight,
        inputs.slice_us / 1e3,
        inputs.hot_experts,
        inputs.between_ms,
    )


def demand_of(inputs: DwdpInputs) -> Demand:
    return Demand(
        prompts_per_s=inputs.prompts_per_s,
        prompt_tokens=inputs.prompt_tokens,
        generation_gpus=inputs.generation_gpus,
        output_tokens_per_s=inputs.prompts_per_s * inputs.output_tokens,
        user_tokens_per_s=inputs.user_tokens_per_s,
        output_tokens=inputs.output_tokens,
        max_load=inputs.max_load / 100,
    )


_FIELDS = {"ranks": "ranks", "local": "held", "prefetch": "copied"}


def rules(inputs: DwdpInputs) -> list[Problem]:
    moe = moe_of(inputs)
    found = []
    if moe.top_k > moe.experts:
        found.append(Problem("top_k", moe.top_k, "more than there are", f"1 to {moe.experts}"))
    if moe.moe_layers > moe.layers:
        found.append(Problem("moe_layers", moe.moe_layers, "more than there are", f"1 to {moe.layers}"))
    if inputs.dep_ranks > moe.experts:
        found.append(Problem("dep_ranks", inputs.dep_ranks, "more than there are experts", f"2 to {moe.experts}"))
    try:
        layout(moe.experts, inputs.ranks, inputs.held, inputs.copied)
    except LayoutError as error:
        name = _FIELDS[error.field]
        found.append(Problem(name, getattr(inputs, name), str(error), "E = L + (N - 1)·P with 0 < P <= E/N"))
    return found
