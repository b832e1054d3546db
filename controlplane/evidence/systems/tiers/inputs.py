"""The inputs of the Tutti page: every parameter of the model, with its source."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from controlplane.evidence.systems.system import Group, Preset
from fleet.engine.law import API_S, law_of
from fleet.engine.profiles import FITS, PEAKS, Profile, UnknownProfile, kv_blocks, profile
from fleet.engine.tiers.devices import DRAM, DRAM_FITTED, LAYER_PASS_S, NAIVE_SHARE, TierDevice, with_prp
from fleet.engine.tiers.loading import paged
from fleet.engine.tiers.sizes import layout_of, metadata_bytes
from fleet.kinds.options.option import option
from fleet.systems.prices import Prices
from fleet.systems.tiers.benchmarks import BENCHMARKS, load_of
from fleet.systems.tiers.load import LEVAL, LOOGLE, LOOGLE_LONG, TierLoad
from fleet.systems.tiers.published import TITLES
from fleet.systems.tiers.queueing import Contention
from fleet.systems.tiers.serving import TierCapacity, TieredEngine
from fleet.systems.tiers.study import Runs, Study, tiers_of
from router.contract.values.problem import Problem

MODELS = tuple(sorted({model for _, model, _ in FITS}))
TPS = tuple(sorted({str(tp) for _, _, tp in FITS}))
GPUS = tuple(PEAKS)
BLOCK_TOKENS = 16
LEAST_POOL = 1_000  # tokens of KV


def _of_tier(title: str, maximum: float, help: str, unit: str = "", minimum: float = 0.0) -> Any:
    """Declare an option that replaces a value in the table of media."""
    words = f"{help} Empty: that of the tier."
    return option(None, title, words, unit=unit, kind="float", range=(minimum, maximum))


@dataclass(frozen=True)
class TierInputs:
    tier: str = option("ssd-tutti", "Tier", "The tier below HBM that the verdict is about.", choices=tuple(TITLES))
    rate: float = option(1.5, "Arrivals", "Poisson.", unit="requests/s", range=(0.01, 20))
    slo_s: float = option(1.0, "TTFT limit", "Of the mean TTFT, for the capacity.", unit="s", range=(0.05, 60))

    gpu: str = option("h100_sxm", "GPU", "Its arithmetic and memory.", choices=GPUS)
    model: str = option("Llama-3.1-8B", "Model", "Its sizes; the publication uses Llama-3-8B.", choices=MODELS)
    tp: str = option("1", "Tensor parallel", "GPUs of an engine; each moves its own share.", choices=TPS)
    attention: float = option(
        1.6, "Attention factor", "Of the law over paged prefixes; 1.6 is fitted to figure 11.", range=(0.1, 10)
    )
    floor_s: float = option(
        0.0,
        "Least time of a layer-wise pass",
        "0.217 is fitted to figure 13; bandwidth does not explain it.",
        unit="s",
        range=(0, 10),
    )
    object_tokens: int = option(
        64, "Tokens of a stored block", "Objects are K or V of one block and layer.", range=(1, 4096)
    )
    hbm_tokens: int = option(
        None, "KV pool", "Of HBM. Empty: what fits at 0.9 of the memory.", unit="tokens", range=(1_000, 100_000_000)
    )
    free_gb: float = option(
        8.0, "Memory outside the pool", "Per GPU, for the buffers of GDS.", unit="GB", range=(0, 500)
    )
    api_s: float = option(API_S, "Time of the API", "Per request, before the queue.", unit="s", range=(0, 10))
    tokenize_us: float = option(1.1, "Tokenizing", "Per prompt token, before the queue.", unit="µs", range=(0, 1_000))
    picks_faster: bool = option(
        False,
        "Load or compute",
        "Load a prefix only when that is faster than computing it; LMCache loads whatever it has.",
    )

    benchmark: str = option(
        "",
        "Documents",
        "Those of L-Eval or LooGLE, with their questions. Empty: of the lengths below.",
        choices=("", *BENCHMARKS),
    )
    mean_tokens: float = option(
        12_200.0,
        "Mean length",
        "Before clipping; fitted to figure 8 (HBM). LooGLE: 39,000.",
        unit="tokens",
        range=(100, 1_000_000),
    )
    sigma: float = option(1.0, "Spread of lengths", "Of their logarithm; assumed.", range=(0.01, 3))
    shortest: int = option(3_000, "Shortest document", "Clips the lengths.", unit="tokens", range=(1, 1_000_000))
    longest: int = option(200_000, "Longest document", "Clips the lengths.", unit="tokens", range=(1, 1_000_000))
    subsets: int = option(20, "Sub-sets", "They take turns; each has its own part of the lengths.", range=(1, 100))
    documents: int = option(
        9, "Open documents", "In each sub-set; with the next one, chosen for the published hits.", range=(1, 200)
    )
    questions: int = option(6, "Questions", "About each document.", range=(1, 200))
    question_tokens: int = option(100, "Length of a question", "Always computed.", unit="tokens", range=(1, 10_000))
    output_tokens: int = option(
        100, "Length of an answer", "Written to the tier; assumed.", unit="tokens", range=(1, 10_000)
    )

    dram_gb: float = option(256.0, "Host memory", "Of the DRAM tier.", unit="GB", range=(1, 100_000))
    dram_read_gb_s: float = option(
        DRAM.read_bytes_per_s / 1e9,
        "Reads of host memory",
        "Of the DRAM tier: its link.",
        unit="GB/s",
        range=(0.01, 10_000),
    )
    dram_layer_ms: float = option(
        0.0,
        "Set-up of a layer, host memory",
        "Of the DRAM tier; 4.15 is fitted to figure 13.",
        unit="ms",
        range=(0, 1_000),
    )
    ssd_gb: float = option(14_000.0, "SSD", "Of the SSD tiers.", unit="GB", range=(1, 10_000_000))
    mode: str = option(
        "",
        "Loading",
        "The whole batch waits, or layer by layer. Empty: that of the tier.",
        choices=("", "block", "layers"),
    )
    read_gb_s: float = _of_tier("Reads", 10_000, "Of the media.", "GB/s", 0.01)
    write_gb_s: float = _of_tier("Writes", 10_000, "Of the media.", "GB/s", 0.01)
    setup_s: float = _of_tier("Set-up of a load", 60, "Before the first byte.", "s")
    layer_setup_ms: float = _of_tier("Set-up of a layer", 1_000, "Whatever the objects.", "ms")
    object_us: float = _of_tier("Control of an object", 100_000, "By the CPU, one after the other.", "µs")
    staging_share: float = _of_tier("Staged share", 1, "Of a load, in memory outside the pool.")
    io_percent: float = _of_tier(
        "Multiprocessors for I/O", 50, "Kept from computing: a review has 4 of 132, which is 3 %.", "%"
    )
    metadata: str = option(
        "",
        "Address lists",
        "Taken off the pool; prp: and a command for each 4 KiB. Empty: those of the tier.",
        choices=("", "none", "prp", "sgl"),
    )

    contention: str = option(
        "",
        "Reads beside writes",
        "Independent, sharing the drives, or never both. Empty: that of the tier.",
        choices=("", "none", "naive", "slack"),
    )
    read_share: float = option(
        NAIVE_SHARE, "Speed beside writes", "Of a load beside naive writes: 12 of 29 GB/s in figure 6.", range=(0.05, 1)
    )
    decode_share: float = option(
        0.5, "Writes while decoding", "Share of that time in which slack writes run; assumed.", range=(0.01, 1)
    )
    backlog_share: float = option(
        0.2, "Most blocks to be written", "Of the pool; past it, prefills wait. Assumed.", range=(0.001, 1)
    )

    gpu_hour: float = option(5.0, "GPU-hour", "Of one GPU.", unit="$", range=(0, 1_000))
    dram_gb_hour: float = option(0.0088, "GB-hour of host memory", "Of 1 GB.", unit="$", range=(0, 10))
    ssd_gb_hour: float = option(0.000082, "GB-hour of SSD", "Of 1 GB.", unit="$", range=(0, 10))
    drive_tb: float = option(15.36, "Drives", "What writes are spread over.", unit="TB", range=(0.1, 100_000))
    amplification: float = option(
        1.0, "Write amplification", "Bytes in flash for each one written; assumed.", range=(1, 50)
    )
    rated_dwpd: float = option(1.0, "Rated drive writes a day", "Over the rated life.", range=(0.01, 100))
    rated_years: float = option(5.0, "Rated life", "At the rated writes.", unit="years", range=(0.1, 50))

    runs: int = option(2, "Runs", "Their median is shown: single runs differ by half.", range=(1, 9))
    requests: int = option(2_000, "Requests", "Of a run, after as many that fill the caches.", range=(100, 4_000))


MOST_SIMULATED = 4_000  # requests of all runs, whose product determines the time

GROUPS = (
    Group(
        "Engine",
        (
            "gpu", "model", "tp", "attention", "floor_s", "object_tokens", "hbm_tokens", "free_gb", "api_s",
            "tokenize_us", "picks_faster",
        ),
    ),
    Group(
        "Load",
        (
            "benchmark", "mean_tokens", "sigma", "shortest", "longest", "subsets", "documents", "questions",
            "question_tokens", "output_tokens",
        ),
    ),
    Group(
        "Tier",
        (
            "dram_gb", "dram_read_gb_s", "dram_layer_ms", "ssd_gb", "mode", "read_gb_s", "write_gb_s", "setup_s",
            "layer_setup_ms", "object_us", "staging_share", "io_percent", "metadata",
        ),
    ),
    Group("Reads beside writes", ("contention", "read_share", "decode_share", "backlog_share")),
    Group(
        "Money and wear",
        ("gpu_hour", "dram_gb_hour", "ssd_gb_hour", "drive_tb", "amplification", "rated_dwpd", "rated_years"),
    ),
    Group("Simulation", ("runs", "requests")),
)  # fmt: skip


def _differing(load: TierLoad) -> Preset:
    """Return the inputs by which a load differs from the default load."""
    return {name: value for name, value in asdict(load).items() if value != getattr(LEVAL, name)}


PRESETS: dict[str, Preset] = {
    **{title: {"tier": name} for name, title in TITLES.items()},
    "Tutti, naive writes": {"tier": "ssd-tutti", "contention": "naive"},
    "Tutti, PRP lists": {"tier": "ssd-tutti", "metadata": "prp"},
    "Tutti, 3 % of the GPU for I/O": {"tier": "ssd-tutti", "io_percent": 3.0},
    "As published": {
        "floor_s": LAYER_PASS_S,
        "dram_layer_ms": round(DRAM_FITTED.layer_setup_s * 1e3, 2),
        "hbm_tokens": 410_000,
    },
    "Nothing fitted": {"benchmark": "leval-documents", "attention": 1.0},
    "LooGLE": {"rate": 0.6, **_differing(LOOGLE)},
    "LooGLE above 100K": {"rate": 0.6, **_differing(LOOGLE_LONG)},
}


def rules(inputs: TierInputs) -> list[Problem]:
    problems = []
    if inputs.longest < inputs.shortest:
        allowed = f"at least the shortest, {inputs.shortest:,} tokens"
        problems.append(Problem("longest", inputs.longest, "shorter than the shortest document", allowed))
    if inputs.runs * inputs.requests > MOST_SIMULATED:
        allowed = f"at most {MOST_SIMULATED // inputs.runs:,} with {inputs.runs} runs: {MOST_SIMULATED:,} in all"
        problems.append(Problem("requests", inputs.requests, "more requests than a page simulates", allowed))
    try:
        found = profile_of(inputs)
    except UnknownProfile:
        known = ", ".join(f"{gpu} {model} tp{tp}" for gpu, model, tp in sorted(FITS))
        return [*problems, Problem("model", inputs.model, f"not known on {inputs.tp} × {inputs.gpu}", known)]
    if pool_tokens(inputs, found) < LEAST_POOL:
        allowed = f"{LEAST_POOL:,} tokens or more, from more GPUs or a value of your choice"
        problems.append(Problem("hbm_tokens", inputs.hbm_tokens, "too few left for KV", allowed))
    return problems


def profile_of(inputs: TierInputs) -> Profile:
    return profile(inputs.gpu, inputs.model, int(inputs.tp))


def pool_tokens(inputs: TierInputs, found: Profile) -> float:
    """Return the KV pool without the tier's address lists."""
    tokens = float(inputs.hbm_tokens or kv_blocks(found, BLOCK_TOKENS) * BLOCK_TOKENS)
    device = device_of(inputs)
    per_gpu = layout_of(found).bytes(1)
    return tokens - (metadata_bytes(device.metadata, tokens * per_gpu) / per_gpu if device else 0.0)


_SCALES = {
    "read_gb_s": ("read_bytes_per_s", 1e9),
    "write_gb_s": ("write_bytes_per_s", 1e9),
    "setup_s": ("setup_s", 1),
    "layer_setup_ms": ("layer_setup_s", 1e-3),
    "object_us": ("object_s", 1e-6),
    "staging_share": ("staging_share", 1),
    "io_percent": ("io_share", 0.01),
}


def _tiers(inputs: TierInputs, kv_bytes: float = 1.0) -> dict[str, TierCapacity]:
    rate, setup_s = inputs.dram_read_gb_s * 1e9, inputs.dram_layer_ms / 1e3
    dram = replace(DRAM, read_bytes_per_s=rate, layer_setup_s=setup_s)
    return tiers_of(kv_bytes, inputs.dram_gb, inputs.ssd_gb, dram)


def device_of(inputs: TierInputs) -> TierDevice | None:
    """Return the chosen tier's device, with given values replacing its own."""
    device = _tiers(inputs)[inputs.tier].device
    if device is None:
        return None
    numbers = {
        field: getattr(inputs, name) * scale
        for name, (field, scale) in _SCALES.items()
        if getattr(inputs, name) is not None
    }
    words = {name: getattr(inputs, name) for name in ("mode", "contention", "metadata") if getattr(inputs, name)}
    if words.get("metadata") == "prp" and device.metadata == "sgl":
        device = with_prp(device, layout_of(profile_of(inputs), inputs.object_tokens).object_bytes)
    return replace(device, **numbers, **words)


def study_of(inputs: TierInputs) -> Study:
    """Return the five tiers under one load; the chosen tier with the given values, the others as published."""
    found = profile_of(inputs)
    engine = TieredEngine(
        paged(law_of(found), inputs.attention),
        layout_of(found, inputs.object_tokens),
        pool_tokens(inputs, found),
        inputs.floor_s,
        inputs.api_s,
        inputs.tokenize_us * 1e-6,
        inputs.picks_faster,
    )
    tiers = _tiers(inputs, found.sizes.kv_bytes_per_token)
    tiers[inputs.tier] = TierCapacity(device_of(inputs), tiers[inputs.tier].tokens)
    return Study(
        engine,
        tiers,
        load_of(inputs),
        Runs(inputs.runs, inputs.requests, inputs.requests),
        Contention(**{field.name: getattr(inputs, field.name) for field in fields(Contention)}),
    )


def prices_of(inputs: TierInputs) -> Prices:
    return Prices(inputs.gpu_hour, inputs.dram_gb_hour, inputs.ssd_gb_hour)
