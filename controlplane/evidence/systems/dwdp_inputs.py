"""The inputs of DWDP's page, and the model's parameters made from them."""

from dataclasses import dataclass, replace
from typing import Any

from fleet.engine.dwdp.layout import LayoutError, layout
from fleet.engine.dwdp.machine import GPUS, Efficiencies, Gpu, Moe
from fleet.engine.dwdp.mixtures import MOES
from fleet.engine.dwdp.phase import Phase, Prompts
from fleet.engine.dwdp.table_1 import FILLED
from fleet.kinds.options.option import option
from fleet.systems.dwdp.planning import Demand
from router.contract.problem import Problem

PETA, TERA, GIGA = 1e15, 1e12, 1e9


def _of_model(title: str, minimum: float, maximum: float, *, unit: str = "", kind: str = "int") -> Any:
    text = "Left out: of the model."
    return option(None, title=title, kind=kind, unit=unit, minimum=minimum, maximum=maximum, help=text)


def _of_gpu(title: str, unit: str, minimum: float, maximum: float, text: str = "") -> Any:
    words = f"{text} Left out: of the GPU.".strip()
    return option(None, title=title, kind="float", unit=unit, minimum=minimum, maximum=maximum, help=words)


def _share(default: float, title: str, text: str) -> Any:
    return option(default, title=title, minimum=0.01, maximum=1, help=text)


@dataclass(frozen=True)
class DwdpInputs:
    model: str = option("DeepSeek-R1", title="Model", choices=tuple(MOES), help="Its published sizes.")
    gpu: str = option("GB200", title="GPU", choices=tuple(GPUS), help="Data sheet.")
    ranks: int = option(4, title="DWDP group", unit="GPUs", minimum=2, maximum=72, help="N: hold a layer's experts.")
    dep_ranks: int = option(4, title="DEP group", unit="GPUs", minimum=2, maximum=72, help="They wait for each other.")
    max_tokens: int = option(
        32_768,
        title="Tokens of an iteration",
        unit="tokens",
        minimum=16,
        maximum=1_048_576,
        help="max_num_tokens (MNT): widens the window.",
    )
    prompt_tokens: int = option(
        7_373, title="Prompt", unit="tokens", minimum=16, maximum=1_048_576, help="Mean, to compute."
    )
    prompt_variation: float = option(
        6.4, title="Variation of prompts", unit="%", minimum=0, maximum=200, help="Standard deviation over mean."
    )
    link_gb_per_s: float | None = _of_gpu("Link, one way", "GB/s", 0.1, 10_000, "Half a data sheet's NVLink.")
    slices: bool = option(False, title="Slices", help="Copies take turns (contention_opt).")
    slice_mib: float = option(
        2.0, title="Slice", unit="MiB", minimum=0.01, maximum=1_024, help="The paper has 1 MB, TensorRT-LLM 2 MiB."
    )
    in_flight: int = option(
        2, title="Slices in flight", minimum=1, maximum=64, help="Of a GPU's copy engine: 2 in the paper."
    )
    slice_us: float = option(
        1.0, title="Set-up of a slice", unit="µs", minimum=0, maximum=10_000, help="Not published: assumed."
    )
    merged: bool = option(False, title="Merged buffer", help="One buffer, copied before the products.")
    chunked: bool = option(False, title="Chunked prefill", help="TensorRT-LLM refuses it with DWDP.")
    chunk_tokens: int = option(
        8_192, title="Chunk", unit="tokens", minimum=16, maximum=1_048_576, help="Of all prompts of an iteration."
    )
    gather_cores: float = option(
        15.0, title="Cores of an all-gather", unit="%", minimum=0, maximum=90, help="What NCCL takes: assumed."
    )
    # Demand
    prompts_per_s: float = option(
        12.0, title="Prompts", unit="1/s", minimum=0.001, maximum=100_000, help="Of all users."
    )
    generation_gpus: int = option(
        12, title="Generation GPUs", minimum=1, maximum=100_000, help="The same for both; they stay DEP."
    )
    output_tokens: int = option(1_000, title="Answer", unit="tokens", minimum=1, maximum=1_048_576, help="Mean.")
    user_tokens_per_s: float = option(
        50.0,
        title="Speed of an answer",
        unit="tokens/s",
        minimum=0.1,
        maximum=10_000,
        help="TPS/user while it is written.",
    )
    max_load: float = option(
        85.0, title="Highest load", unit="%", minimum=1, maximum=99, help="Of the context GPUs' throughput."
    )
    # Experts
    held: int | None = option(
        None, title="Experts held", minimum=1, maximum=4_096, help="L of each GPU; left out: E - (N - 1)·P."
    )
    copied: int | None = option(
        None, title="Experts copied", minimum=1, maximum=4_096, help="P from each other GPU; left out: floor(E/N)."
    )
    hot_experts: float = option(
        0.0, title="Hot experts", minimum=0, maximum=3, help="Zipf exponent of the router's choice; 0: uniform."
    )
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
        0.517, title="All-to-all", minimum=0, maximum=10, help="Times a copy of each token to each of its experts."
    )
    other_us: float = option(
        8.2, title="Other computing", unit="µs/token", minimum=0, maximum=10_000, help="Of all layers: table 1."
    )
    slowed: float = option(
        0.234, title="Slowed by copying", minimum=0, maximum=1, help="ms of computing lost per ms of copying: table 1."
    )
    skew_us: float = option(
        4.666,
        title="Spread of a DEP group",
        unit="µs/token",
        minimum=0,
        maximum=10_000,
        help="Besides prompt lengths; fitted to table 3c.",
    )
    filled: float = option(
        FILLED * 100, title="Filled", unit="%", minimum=1, maximum=100, help="Of an iteration: prompts stay whole."
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
    """Return the phase. Raises LayoutError."""
    moe = moe_of(inputs)
    reached = Efficiencies(
        experts=inputs.expert_share,
        projections=inputs.projection_share,
        attention=inputs.attention_share,
        other_ms_per_token=inputs.other_us / 1e3,
        link=inputs.link_share,
        all_to_all=inputs.all_to_all_share,
        slowed=inputs.slowed,
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
