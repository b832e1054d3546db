"""The inputs of the Tutti page: every parameter of the model, with its source."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from controlplane.evidence.systems.system import Group, Preset
from fleet.engine.law import law_of
from fleet.engine.profiles import FITS, PEAKS, Profile, UnknownProfile, kv_blocks, profile
from fleet.engine.tiers.devices import DRAM, DRAM_FITTED, LAYER_PASS_S, NAIVE_SHARE, TierDevice, with_prp
from fleet.engine.tiers.loading import paged
from fleet.engine.tiers.sizes import layout_of, metadata_bytes
from fleet.kinds.options.option import option
from fleet.systems.prices import Prices
from fleet.systems.tiers.load import LEVAL, LOOGLE, TierLoad
from fleet.systems.tiers.published import TITLES
from fleet.systems.tiers.queueing import Contention
from fleet.systems.tiers.serving import TierCapacity, TieredEngine
from fleet.systems.tiers.study import Runs, Study, tiers_of
from router.contract.problem import Problem

MODELS = tuple(sorted({model for _, model, _ in FITS}))
TPS = tuple(sorted({str(tp) for _, _, tp in FITS}))
GPUS = tuple(PEAKS)
BLOCK_TOKENS = 16
LEAST_POOL = 1_000  # tokens of KV


def _of_tier(title: str, maximum: float, help: str, unit: str = "", minimum: float = 0.0) -> Any:
    """Declare an option that replaces a value in the table of media."""
    words = f"{help} Empty: that of the tier."
    return option(None, kind="float", title=title, unit=unit, minimum=minimum, maximum=maximum, help=words)


@dataclass(frozen=True)
class TierInputs:
    tier: str = option(
        "ssd-tutti", title="Tier", choices=tuple(TITLES), help="The tier below HBM that the verdict is about."
    )
    rate: float = option(1.5, title="Arrivals", unit="requests/s", minimum=0.01, maximum=20, help="Poisson.")
    slo_s: float = option(
        1.0, title="TTFT limit", unit="s", minimum=0.05, maximum=60, help="Of the mean TTFT, for the capacity."
    )

    gpu: str = option("h100_sxm", title="GPU", choices=GPUS, help="Its arithmetic and memory.")
    model: str = option(
        "Llama-3.1-8B", title="Model", choices=MODELS, help="Its sizes; the publication uses Llama-3-8B."
    )
    tp: str = option("1", title="Tensor parallel", choices=TPS, help="GPUs of an engine; each moves its own share.")
    attention: float = option(
        1.6,
        title="Attention factor",
        minimum=0.1,
        maximum=10,
        help="Of the law over paged prefixes; 1.6 is fitted to figure 11.",
    )
    floor_s: float = option(
        0.0,
        title="Least time of a layer-wise pass",
        unit="s",
        minimum=0,
        maximum=10,
        help="0.217 is fitted to figure 13; bandwidth does not explain it.",
    )
    object_tokens: int = option(
        64, title="Tokens of a stored block", minimum=1, maximum=4096, help="Objects are K or V of one block and layer."
    )
    hbm_tokens: int = option(
        None,
        title="KV pool",
        unit="tokens",
        minimum=1_000,
        maximum=100_000_000,
        help="Of HBM. Empty: what fits at 0.9 of the memory.",
    )
    free_gb: float = option(
        8.0, title="Memory outside the pool", unit="GB", minimum=0, maximum=500, help="Per GPU, for the buffers of GDS."
    )
    api_s: float = option(
        0.015, title="Time of the API", unit="s", minimum=0, maximum=10, help="Per request, before the queue."
    )
    tokenize_us: float = option(
        1.1, title="Tokenizing", unit="µs", minimum=0, maximum=1_000, help="Per prompt token, before the queue."
    )
    picks_faster: bool = option(
        False,
        title="Load or compute",
        help="Load a prefix only when that is faster than computing it; LMCache loads whatever it has.",
    )

    mean_tokens: float = option(
        12_200.0,
        title="Mean length",
        unit="tokens",
        minimum=100,
        maximum=1_000_000,
        help="Before clipping; fitted to figure 8 (HBM). LooGLE: 39,000.",
    )
    sigma: float = option(1.0, title="Spread of lengths", minimum=0.01, maximum=3, help="Of their logarithm; assumed.")
    shortest: int = option(
        3_000, title="Shortest document", unit="tokens", minimum=1, maximum=1_000_000, help="Clips the lengths."
    )
    longest: int = option(
        200_000, title="Longest document", unit="tokens", minimum=1, maximum=1_000_000, help="Clips the lengths."
    )
    subsets: int = option(
        20, title="Sub-sets", minimum=1, maximum=100, help="They take turns; each has its own part of the lengths."
    )
    documents: int = option(
        9,
        title="Open documents",
        minimum=1,
        maximum=200,
        help="In each sub-set; with the next one, chosen for the published hits.",
    )
    questions: int = option(6, title="Questions", minimum=1, maximum=200, help="About each document.")
    question_tokens: int = option(
        100, title="Length of a question", unit="tokens", minimum=1, maximum=10_000, help="Always computed."
    )
    output_tokens: int = option(
        100, title="Length of an answer", unit="tokens", minimum=1, maximum=10_000, help="Written to the tier; assumed."
    )

    dram_gb: float = option(256.0, title="Host memory", unit="GB", minimum=1, maximum=100_000, help="Of the DRAM tier.")
    dram_read_gb_s: float = option(
        DRAM.read_bytes_per_s / 1e9,
        title="Reads of host memory",
        unit="GB/s",
        minimum=0.01,
        maximum=10_000,
        help="Of the DRAM tier: its link; 19.4 is fitted to figure 13.",
    )
    ssd_gb: float = option(14_000.0, title="SSD", unit="GB", minimum=1, maximum=10_000_000, help="Of the SSD tiers.")
    mode: str = option(
        "",
        title="Loading",
        choices=("", "block", "layers"),
        help="The whole batch waits, or layer by layer. Empty: that of the tier.",
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
        title="Address lists",
        choices=("", "none", "prp", "sgl"),
        help="Taken off the pool; prp: and a command for each 4 KiB. Empty: those of the tier.",
    )

    contention: str = option(
        "",
        title="Reads beside writes",
        choices=("", "none", "naive", "slack"),
        help="Independent, sharing the drives, or never both. Empty: that of the tier.",
    )
    read_share: float = option(
        NAIVE_SHARE,
        title="Speed beside writes",
        minimum=0.05,
        maximum=1,
        help="Of a load beside naive writes: 12 of 29 GB/s in figure 6.",
    )
    decode_share: float = option(
        0.5,
        title="Writes while decoding",
        minimum=0.01,
        maximum=1,
        help="Share of that time in which slack writes run; assumed.",
    )
    backlog_share: float = option(
        0.2,
        title="Most blocks to be written",
        minimum=0.001,
        maximum=1,
        help="Of the pool; past it, prefills wait. Assumed.",
    )

    gpu_hour: float = option(5.0, title="GPU-hour", unit="$", minimum=0, maximum=1_000, help="Of one GPU.")
    dram_gb_hour: float = option(
        0.0088, title="GB-hour of host memory", unit="$", minimum=0, maximum=10, help="Of 1 GB."
    )
    ssd_gb_hour: float = option(0.000082, title="GB-hour of SSD", unit="$", minimum=0, maximum=10, help="Of 1 GB.")
    drive_tb: float = option(
        15.36, title="Drives", unit="TB", minimum=0.1, maximum=100_000, help="What writes are spread over."
    )
    amplification: float = option(
        1.0, title="Write amplification", minimum=1, maximum=50, help="Bytes in flash for each one written; assumed."
    )
    rated_dwpd: float = option(
        1.0, title="Rated drive writes a day", minimum=0.01, maximum=100, help="Over the rated life."
    )
    rated_years: float = option(
        5.0, title="Rated life", unit="years", minimum=0.1, maximum=50, help="At the rated writes."
    )

    runs: int = option(2, title="Runs", minimum=1, maximum=9, help="Their median is shown: single runs differ by half.")
    requests: int = option(
        2_000, title="Requests", minimum=100, maximum=4_000, help="Of a run, after as many that fill the caches."
    )


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
            "mean_tokens", "sigma", "shortest", "longest", "subsets", "documents", "questions", "question_tokens",
            "output_tokens",
        ),
    ),
    Group(
        "Tier",
        (
            "dram_gb", "dram_read_gb_s", "ssd_gb", "mode", "read_gb_s", "write_gb_s", "setup_s", "layer_setup_ms",
            "object_us", "staging_share", "io_percent", "metadata",
        ),
    ),
    Group("Reads beside writes", ("contention", "read_share", "decode_share", "backlog_share")),
    Group(
        "Money and wear",
        ("gpu_hour", "dram_gb_hour", "ssd_gb_hour", "drive_tb", "amplification", "rated_dwpd", "rated_years"),
    ),
    Group("Simulation", ("runs", "requests")),
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    **{title: {"tier": name} for name, title in TITLES.items()},
    "Tutti, naive writes": {"tier": "ssd-tutti", "contention": "naive"},
    "Tutti, PRP lists": {"tier": "ssd-tutti", "metadata": "prp"},
    "Tutti, 3 % of the GPU for I/O": {"tier": "ssd-tutti", "io_percent": 3.0},
    "As published": {
        "floor_s": LAYER_PASS_S,
        "dram_read_gb_s": DRAM_FITTED.read_bytes_per_s / 1e9,
        "hbm_tokens": 410_000,
    },
    "Nothing fitted": {"mean_tokens": 16_340.0, "documents": 8, "attention": 1.0},
    "LooGLE": {"rate": 0.6} | {name: value for name, value in asdict(LOOGLE).items() if value != getattr(LEVAL, name)},
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
        allowed = f"{LEAST_POOL:,} tokens or more, from more GPUs or by a value of your own"
        problems.append(Problem("hbm_tokens", inputs.hbm_tokens, "too few left for KV", allowed))
    return problems


def profile_of(inputs: TierInputs) -> Profile:
    return profile(inputs.gpu, inputs.model, int(inputs.tp))


def pool_tokens(inputs: TierInputs, found: Profile) -> float:
    """Return the KV pool without the address lists of the tier."""
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
    dram = replace(DRAM, read_bytes_per_s=inputs.dram_read_gb_s * 1e9)
    return tiers_of(kv_bytes, inputs.dram_gb, inputs.ssd_gb, dram)


def device_of(inputs: TierInputs) -> TierDevice | None:
    """Return the chosen tier's device, with given values instead of its own."""
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
    """Return the five tiers under one load; the chosen one with the given values, the others as published."""
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
        TierLoad(**{field.name: getattr(inputs, field.name) for field in fields(TierLoad)}),
        Runs(inputs.runs, inputs.requests, inputs.requests),
        Contention(**{field.name: getattr(inputs, field.name) for field in fields(Contention)}),
    )


def prices_of(inputs: TierInputs) -> Prices:
    return Prices(inputs.gpu_hour, inputs.dram_gb_hour, inputs.ssd_gb_hour)
