"""Fits the points and constants of a profile to sampled step times. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fleet.engine.law import interpolated_ms
from fleet.engine.tables import Family, Points, Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The combination for which a profile is made."""

    model: str  # name on its hub
    gpu: str
    tp: int = 1
    dp: int = 1
    ep: int = 1
    gemm: str = ""  # format of products, as the library names it; empty: the published model's
    moe: str = ""  # layout of experts
    kv: str = ""
    name: str = ""
    config: dict[str, Any] | None = None  # config.json, for a model that the library does not know
    notes: tuple[str, ...] = ()

    @property
    def formats(self) -> str:
        given = {"products": self.gemm, "experts": self.moe, "KV": self.kv}
        return ", ".join(f"{what} {mode}" for what, mode in given.items() if mode) or "as published"


Sample = Sequence[float]  # [new tokens or sequences, tokens before each, milliseconds]
ENOUGH = 0.005  # relative error allowed for the lines between the points


@dataclass(frozen=True, slots=True)
class StepPart:
    """One part of a step: T = linear(n) + slope · work."""

    points: Points
    slope_ms: float


def prefill_part(samples: Iterable[Sample]) -> StepPart:
    """Fit prefill. Work: (new token, token before it) pairs."""
    return _part([(int(n), n * (c + n / 2), ms) for n, c, ms in samples], most=48)


def decode_part(samples: Iterable[Sample]) -> StepPart:
    """Fit decode. Work: tokens of context, of all sequences."""
    return _part([(int(n), n * c, ms) for n, c, ms in samples], most=24)


def _part(rows: Sequence[tuple[int, float, float]], most: int) -> StepPart:
    """Fit by least squares of the relative error, with one linear part for each n and one slope for all."""
    groups: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for n, work, ms in rows:
        groups[n].append((work, ms))
    above = below = 0.0
    means = {}
    for n, group in groups.items():
        weights = [1 / ms**2 for _, ms in group]
        total = sum(weights)
        work_mean = sum(w * x for w, (x, _) in zip(weights, group, strict=True)) / total
        ms_mean = sum(w * y for w, (_, y) in zip(weights, group, strict=True)) / total
        means[n] = work_mean, ms_mean
        above += sum(w * (x - work_mean) * (y - ms_mean) for w, (x, y) in zip(weights, group, strict=True))
        below += sum(w * (x - work_mean) ** 2 for w, (x, _) in zip(weights, group, strict=True))
    slope = max(above / below, 0.0)
    least = min(ms for _, _, ms in rows) / 10
    linear = [(n, max(ms - slope * work, least)) for n, (work, ms) in sorted(means.items())]
    return StepPart(_thinned(linear, most), slope)


def _thinned(points: list[tuple[int, float]], most: int) -> Points:
    """Thin the points: keep both ends, then repeatedly add the point that the lines miss most, until none is missed
    by more than `ENOUGH`."""
    kept = [0, len(points) - 1]
    while len(kept) < most:
        misses = [
            (abs(_between(points[left], points[right], n) / ms - 1), left + 1 + i)
            for left, right in pairwise(kept)
            for i, (n, ms) in enumerate(points[left + 1 : right])
        ]
        miss, place = max(misses, default=(0.0, 0))
        if miss <= ENOUGH:
            break
        kept = sorted([*kept, place])
    return tuple(points[i][0] for i in kept), tuple(float(f"{points[i][1]:.4g}") for i in kept)


def _between(left: tuple[int, float], right: tuple[int, float], n: int) -> float:
    return left[1] + (right[1] - left[1]) * (n - left[0]) / (right[0] - left[0])


def errors(prefill: StepPart, decode: StepPart, tried: dict[str, Any]) -> list[float]:
    """Return the relative errors at shapes between the points."""
    found = []
    for n, c, ms in tried["prefill"]:
        found.append((interpolated_ms(prefill.points, n) + prefill.slope_ms * n * (c + n / 2)) / ms - 1)
    for n, c, ms in tried["decode"]:
        found.append((interpolated_ms(decode.points, n) + decode.slope_ms * n * c) / ms - 1)
    for n, d, ms in tried["mixed"]:
        attention = prefill.slope_ms * n * n / 2 + decode.slope_ms * d * n
        found.append((interpolated_ms(prefill.points, n + d) + attention) / ms - 1)
    return found


def family_of(config: dict[str, Any]) -> Family:
    text = config.get("text_config") or config
    if text.get("kv_lora_rank"):
        return "latent"
    experts = max(text.get(name) or 0 for name in ("num_local_experts", "num_experts", "n_routed_experts"))
    return "moe" if experts > 1 else "dense"


def tables_of(layout: Layout, answer: dict[str, Any]) -> Tables:
    """Build the tables. `answer` comes from fleet/profiling/sample_tables.py."""
    prefill, decode = prefill_part(answer["prefill"]), decode_part(answer["decode"])
    off = [abs(one) for one in errors(prefill, decode, answer["tried"])]
    config = answer["config"]
    text = config.get("text_config") or config
    return Tables(
        name=layout.name,
        model=layout.model,
        gpu=layout.gpu,
        tp=layout.tp,
        dp=layout.dp,
        ep=layout.ep,
        formats=layout.formats,
        family=family_of(config),
        layers=text["num_hidden_layers"],
        vocabulary=text.get("vocab_size") or 0,
        weight_bytes=answer["weight_bytes"],
        kv_bytes_per_token=round(answer["kv_bytes_per_token"], 1),
        prefill=prefill.points,
        decode=decode.points,
        pair_ns=float(f"{prefill.slope_ms * 1e6:.4g}"),
        context_ns=float(f"{decode.slope_ms * 1e6:.4g}"),
        source=f"aiconfigurator-core {answer['library']}, tables of vLLM {answer['engine']}",
        measured=round(answer["measured"], 3),
        grid_error=round(sum(off) / len(off), 4),
        grid_worst=round(max(off), 3),
        notes=layout.notes + _doubts(config, layout, chained=answer["chained"]),
    )


BLOCK_FP8 = (
    "the tables of block-FP8 products take at least 60 µs (Hopper) or 170 µs (Blackwell) at any shape, which engines "
    "do not show: calibrate before you trust its TPOT"
)


CHAINED = (
    "the tables of its attention were measured with norms as engines do not run them: what these cost on a GB200, 33 "
    "to 65 µs a layer in a step of up to 256 tokens, is taken off"
)


def _doubts(config: dict[str, Any], layout: Layout, *, chained: bool) -> tuple[str, ...]:
    quantized = config.get("quantization_config") or {}
    block = bool(quantized.get("weight_block_size")) and not layout.gemm
    return (BLOCK_FP8,) * block + (CHAINED,) * chained
