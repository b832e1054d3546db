"""Tutti: KV on drives at the speed of memory, against its baselines."""

from dataclasses import dataclass

from controlplane.systems.system import Answer, Axis, Chart, Fact, Figure, Series, System
from fleet.engine.tiers.devices import SSD_GDS
from fleet.engine.tiers.sizes import Layout, metadata_bytes, staging_tokens
from fleet.kinds.option import option

GIB = 2**30


@dataclass(frozen=True)
class Inputs:
    pool_gib: float = option(
        60.0, title="KV pool", unit="GiB", minimum=1, maximum=1_000, help="Device memory for KV blocks."
    )
    kv_bytes: int = option(
        131_072,
        title="KV per token",
        unit="bytes",
        minimum=1_024,
        maximum=1 << 22,
        help="Of one rank; Llama-3-8B: 131,072.",
    )
    free_gb: float = option(
        8.0,
        title="Memory outside the pool",
        unit="GB",
        minimum=0.1,
        maximum=200,
        help="What the engine leaves: buffers of GDS.",
    )


def compute(inputs: Inputs) -> Answer:
    pool = inputs.pool_gib * GIB
    prp, sgl = metadata_bytes("prp", pool), metadata_bytes("sgl", pool)
    longest = staging_tokens(SSD_GDS, Layout(inputs.kv_bytes, 32), inputs.free_gb * 1e9)
    sizes = tuple(sorted({8.0, 16.0, 32.0, 60.0, 120.0, 240.0, inputs.pool_gib}))
    chart = Chart(
        "Device memory for address lists",
        Axis("KV pool", "GiB", log=True),
        Axis("Lists", "MiB", log=True),
        (
            Series("PRP", sizes, tuple(metadata_bytes("prp", size * GIB) / 2**20 for size in sizes)),
            Series("SGL", sizes, tuple(metadata_bytes("sgl", size * GIB) / 2**20 for size in sizes)),
        ),
    )
    return Answer(
        f"SGL lists take {sgl / 2**20:,.3g} MiB of device memory where PRP lists take {prp / GIB:,.3g} GiB.",
        (
            Fact("PRP lists", prp / GIB, "GiB", f"{prp / inputs.kv_bytes:,.0f} tokens of KV fewer"),
            Fact("SGL lists", sgl / 2**20, "MiB"),
            Fact("Longest prefix with GDS", longest, "tokens", "its buffers lie outside the pool"),
        ),
        (chart,),
    )


def figures() -> tuple[Figure, ...]:
    pool = 60 * GIB
    return (
        Figure("PRP lists of a 60 GiB pool", 3.75, metadata_bytes("prp", pool) / GIB, "GiB", False, "§3.1"),
        Figure("SGL lists of a 60 GiB pool", 15, metadata_bytes("sgl", pool) / 2**20, "MiB", False, "§3.1"),
    )


TIERS = System(
    "tutti",
    "Tutti",
    "KV blocks on drives, loaded layer by layer behind the computation. When does a tier below HBM pay?",
    Inputs,
    {"A pool of 60 GiB": {}, "A pool of 120 GiB": {"pool_gib": 120.0}},
    compute,
    figures,
)
