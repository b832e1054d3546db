"""Profiles from measured tables: the step times of one model on one GPU in one layout, as points. The points are
sampled from the kernel tables of aiconfigurator-core (fleet/profiling). The tables contain neither the host's time nor
the cost of a decoding sequence besides its arithmetic; law.py adds both. Prefill and decode have separate linear parts,
as their kernels differ: products, norms, reductions, experts and their exchange.
"""

import math
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

Family = Literal["dense", "moe", "latent"]  # latent: attention over a compressed vector (MLA)
Count = Annotated[int, Meta(ge=1, le=4096)]
Size = Annotated[float, Meta(gt=0, le=1e15)]
Vocabulary = Annotated[int, Meta(ge=0, le=10_000_000)]
Time = Annotated[float, Meta(ge=0, le=1e12)]
Points = tuple[tuple[int, ...], tuple[float, ...]]  # tokens in a step, and its linear part in ms

# |Error| of TPOT, E2E and mean TTFT compared with measured closed loops, for the worst group of a family that
# influenced no choice; for latent attention, the worst of all its points. docs/findings/reproduced.md lists them all.
EXPECTED: dict[str, tuple[float, float, float]] = {
    "dense": (0.14, 0.14, 0.41),
    "moe": (0.24, 0.24, 0.38),
    "latent": (0.14, 0.14, 0.36),
}


class Tables(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Measured tables of one model on one GPU; all byte counts are per GPU."""

    name: str  # name of the model with its number formats, as in the option model_profile
    model: str  # the model's name on its hub
    gpu: str
    tp: Count
    dp: Count = 1  # number of ranks that share the experts
    ep: Count = 1  # GPUs over which whole experts are distributed; 1: every GPU has a slice of each expert
    formats: str  # formats of products, experts and KV
    family: Family
    layers: Count
    vocabulary: Vocabulary = 0  # 0: unknown
    weight_bytes: Size  # weights, embeddings included
    kv_bytes_per_token: Size  # for a window as long as the model's; layers with a shorter window need less
    prefill: Points
    decode: Points
    pair_ns: Time  # attention of a prefill, per pair of a new token and one before it
    context_ns: Time  # attention of a decode step, per token of context
    source: str
    measured: float  # share of the step time that was measured at the shapes, or interpolated between them, 0–1
    grid_error: float  # mean |relative error| against the tables, at shapes between the points
    grid_worst: float
    notes: tuple[str, ...] = ()  # known weaknesses, as sentences

    def __post_init__(self) -> None:
        for name, (tokens, times) in (("prefill", self.prefill), ("decode", self.decode)):
            if not len(tokens) == len(times) >= 2 or tokens[0] < 1 or any(b <= a for a, b in pairwise(tokens)):
                raise ValueError(f"{name} must be two lists of equal length, the first of growing token counts")
            if not all(0 < each < math.inf for each in times):
                raise ValueError(f"{name} must have times of more than 0 ms")

    @property
    def has_experts(self) -> bool:
        return self.family != "dense"

    @property
    def layout(self) -> str:
        parts = [f"tp {self.tp}"]
        parts += [f"dp {self.dp}"] if self.dp > 1 else []
        parts += [f"ep {self.ep}"] if self.ep > 1 else []
        return ", ".join(parts)


DECODER: Final = msgspec.json.Decoder(Tables)  # made at import, as threads may read at once
Key = tuple[str, str, int, int, int]  # GPU, name, tp, dp, ep


def key_of(tables: Tables) -> Key:
    return tables.gpu, tables.name, tables.tp, tables.dp, tables.ep


@cache
def catalogue() -> dict[Key, Tables]:
    """Return the profiles that ship with Weir, one per line, made by `python -m bench.catalogue`."""
    lines = Path(__file__).with_name("catalogue.jsonl").read_bytes().splitlines()
    return {key_of(one): one for one in map(DECODER.decode, lines)}
