"""`python -m bench.catalogue [--write]`: makes the profiles that ship with the product.

It needs aiconfigurator-core (requirements-profiles.txt) and takes about five minutes of one core.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fleet.engine import tables
from fleet.engine.profiles import UnknownProfile, profile_by
from fleet.profiling.fit import Layout
from fleet.profiling.make import make_all

HOPPER = ("h100_sxm", "h200_sxm")
FOUR = (*HOPPER, "b200_sxm", "b300_sxm")
PLAIN_FP8 = (
    "its products are those of plain FP8, as the tables of block-FP8 products take at least 60 to 280 µs at any shape, "
    "which engines do not show"
)


def layouts() -> Iterator[Layout]:
    for gpu in FOUR:
        yield from _dense(gpu, "nvidia/Llama-3.1-70B-Instruct-FP8", (1, 2, 4, 8), kv="fp8")
        yield from _dense(gpu, "Qwen/Qwen3-32B-FP8", (1, 2, 4), gemm="fp8", notes=(PLAIN_FP8,))
        yield from _moe(gpu, "openai/gpt-oss-20b", (1, 2))
        yield from _moe(gpu, "openai/gpt-oss-120b", (1, 2, 4, 8))
        yield from _moe(gpu, "Qwen/Qwen3-30B-A3B", (1, 2, 4))
        yield from _moe(gpu, "Qwen/Qwen3-30B-A3B-FP8", (1, 2, 4), gemm="fp8", notes=(PLAIN_FP8,))
        # Block products on Hopper are taken unchanged: the plain ones were further from its measurements.
        plain = gpu not in HOPPER
        yield from _moe(
            gpu,
            "Qwen/Qwen3-235B-A22B-FP8",
            (4, 8),
            gemm="fp8" if plain else "",
            notes=(PLAIN_FP8,) if plain else (),
        )
        yield from _moe(gpu, "mistralai/Mixtral-8x7B-v0.1", (2, 4, 8))
        yield from _moe(gpu, "MiniMaxAI/MiniMax-M2.5", (1, 2, 4, 8), gemm="fp8", notes=(PLAIN_FP8,))
        yield from _moe(gpu, "deepseek-ai/DeepSeek-V3", (8,), gemm="fp8", notes=(PLAIN_FP8,))
        yield from _moe(gpu, "moonshotai/Kimi-K2.5", (8,))
    for gpu in FOUR[2:]:
        yield from _dense(
            gpu, "meta-llama/Meta-Llama-3.1-70B", (1, 2, 4, 8), gemm="nvfp4", kv="fp8", name="Llama-3.1-70B-NVFP4"
        )
        yield from _moe(gpu, "nvidia/MiniMax-M2.5-NVFP4", (1, 2, 4, 8))
        yield from _moe(gpu, "nvidia/Kimi-K2.5-NVFP4", (4, 8))
    for gpu in ("a100_sxm", "l40s", "rtx_pro_6000_server"):
        yield from _dense(gpu, "Qwen/Qwen3-8B", (1, 2))
        yield from _dense(gpu, "Qwen/Qwen3-32B", (2, 4))


def _dense(
    gpu: str,
    model: str,
    tps: tuple[int, ...],
    *,
    gemm: str = "",
    kv: str = "",
    name: str = "",
    notes: tuple[str, ...] = (),
) -> Iterator[Layout]:
    for tp in tps:
        yield Layout(model=model, gpu=gpu, tp=tp, gemm=gemm, kv=kv, name=name or model.rpartition("/")[2], notes=notes)


def _moe(
    gpu: str, model: str, tps: tuple[int, ...], *, gemm: str = "", notes: tuple[str, ...] = ()
) -> Iterator[Layout]:
    """Yield layouts with slices of each expert, with whole experts distributed over the GPUs, and with a rank for
    each GPU."""
    for tp in tps:
        wide = [(tp, 1, 1), (tp, 1, tp), (1, tp, tp)] if tp > 1 else [(1, 1, 1)]
        for tp_, dp, ep in [*wide, *([(2, 2, 4)] if tp == 4 else [])]:
            yield Layout(
                model=model, gpu=gpu, tp=tp_, dp=dp, ep=ep, gemm=gemm, name=model.rpartition("/")[2], notes=notes
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into fleet/engine/catalogue.jsonl; else only tell")
    write = parser.parse_args().write
    asked = list(layouts())
    made = make_all(asked, timeout_s=1800)
    lines = []
    for layout, one in zip(asked, made, strict=True):
        where = f"{layout.name} {layout.gpu} tp {layout.tp} dp {layout.dp} ep {layout.ep}"
        if isinstance(one, str):
            print(f"left out: {where}: {one}")
            continue
        try:
            profile_by(one)
        except UnknownProfile as error:
            print(f"left out: {where}: {error}")
            continue
        print(f"{where}: grid {one.grid_error:.1%}, at most {one.grid_worst:.0%}, measured {one.measured:.0%}")
        lines.append(msgspec.json.encode(one))
    if write:
        Path(tables.__file__).with_name("catalogue.jsonl").write_bytes(b"\n".join([*lines, b""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
