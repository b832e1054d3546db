"""The time of one GPU for the parts of a step, in plain PyTorch, beside the twin's law for that GPU.

    python -m bench.gpu.steps [--gpu h100_sxm] [--models NAME ...] [--device cuda] [--out FILE]

Needs PyTorch, not Weir's environment. For the shapes of each model, random data in bfloat16: the matrix products of a
layer by tokens of a step, attention of a prompt by its length (flash attention of PyTorch), attention of decoding
sequences by the context that they read, and copies between host (pinned) and device. Each figure is the median of
replays of a CUDA graph that holds several layers, each with its own data, so that no cache holds it. The law's figure
is without the fixed time of a step (t0 and host): kernels alone are measured. `--device cpu` tries the bench only.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fleet.counted import percent
from fleet.engine.law import Law, law_of
from fleet.engine.profiles import GPUS, MODELS, profile

SHAPES = {  # hidden, inner, heads of queries, heads of keys and values, vocabulary
    "Llama-3.1-8B": (4096, 14_336, 32, 8, 128_256),
    "Qwen3-14B": (5120, 17_408, 40, 8, 151_936),
    "Qwen3-32B": (5120, 25_600, 64, 8, 151_936),
}
HEAD = 128
TOKENS = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
PROMPTS = (512, 1024, 2048, 4096, 8192, 16_384)
DECODES = ((1, 4096), (8, 1024), (8, 8192), (32, 1024), (32, 4096), (64, 2048), (128, 1024))  # sequences, context
COPIES = (65_536, 2 << 20, 64 << 20, 1 << 30)  # bytes per copy
LAYERS = 4  # layers in a graph, each with its own weights and KV
REPLAYS = 15
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="h100_sxm", choices=[name for name in GPUS])
    parser.add_argument("--models", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import torch

    small = options.device == "cpu"
    bench = Bench(torch, options.device)
    rows: list[Row] = []
    for name in options.models:
        law = law_of(profile(options.gpu, name, 1))
        rows += [shown(row) for row in model_rows(bench, name, law, small=small)]
    rows += [shown(row) for row in copies(bench, small=small)]
    if options.out:
        options.out.write_text(json.dumps({"device": bench.about(), "gpu": options.gpu, "rows": rows}))
    print(json.dumps(bench.about()))
    for line in summary(rows):
        print(line)


def model_rows(bench: "Bench", name: str, law: Law, *, small: bool) -> Iterator[Row]:
    sizes = MODELS[name]
    tokens, prompts, decodes = (TOKENS[:2], PROMPTS[:1], DECODES[1:2]) if small else (TOKENS, PROMPTS, DECODES)
    for count in tokens:
        found = bench.products(SHAPES[name], count) * sizes.layers + bench.head(SHAPES[name], min(count, 128))
        yield row(name, "products", {"tokens": count}, found, law.linear_s(count))
    for length in prompts:
        pairs = length * length / 2
        found = bench.prefill(SHAPES[name], length) * sizes.layers
        yield row(name, "prompt attention", {"tokens": length}, found, law.attention_s_per_pair * pairs)
    for sequences, context in decodes:
        found = bench.decode(SHAPES[name], sequences, context) * sizes.layers
        said = law.kv_s_per_token * sequences * context
        yield row(name, "decode attention", {"sequences": sequences, "context": context}, found, said)


def row(model: str, part: str, of: dict[str, int], measured_s: float, law_s: float | None) -> Row:
    return {"model": model, "part": part, **of, "measured_s": measured_s, "law_s": law_s}


def shown(one: Row) -> Row:
    of = ", ".join(f"{key} {value:,}" for key, value in one.items() if isinstance(value, int))
    said = (
        f", law {one['law_s'] * 1e3:9.3f} ms {percent(one['law_s'] / one['measured_s'] - 1, '+.0f')}"
        if one["law_s"]
        else ""
    )
    more = f", {one['gb_s']:.1f} GB/s" if "gb_s" in one else ""
    print(f"{one['model']:14} {one['part']:17} {of:32} {one['measured_s'] * 1e3:9.3f} ms{said}{more}", flush=True)
    return one


def copies(bench: "Bench", *, small: bool) -> Iterator[Row]:
    for direction in ("host to device", "device to host", "device to device"):
        for size in COPIES[:1] if small else COPIES:
            taken = bench.copy(direction, size)
            moved = 2 * size if direction == "device to device" else size
            yield row("-", direction, {"bytes": size}, taken, None) | {"gb_s": moved / taken / 1e9}


def summary(rows: list[Row]) -> Iterator[str]:
    """Yield the mean |law / measured - 1| of each model and part."""
    groups: dict[tuple[str, str], list[float]] = {}
    for one in rows:
        if one["law_s"]:
            groups.setdefault((one["model"], one["part"]), []).append(one["law_s"] / one["measured_s"] - 1)
    yield "model, part, n, mean |error| (bias) of the law"
    for (model, part), off in groups.items():
        mean = statistics.fmean(map(abs, off))
        yield f"{model}, {part}, {len(off)}, {percent(mean)} ({percent(statistics.fmean(off), '+.0f')})"


class Bench:
    """Measures the parts of a step. `torch`: the module. Times in seconds, of one layer."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self.device, self.cuda = torch, device, device == "cuda"
        torch.manual_seed(1)

    def about(self) -> dict[str, str]:
        name = self.torch.cuda.get_device_name(0) if self.cuda else "CPU"
        return {"gpu": name, "torch": self.torch.__version__, "cuda": str(self.torch.version.cuda)}

    def random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device=self.device, dtype=self.torch.bfloat16) * 0.02

    def products(self, shape: tuple[int, ...], tokens: int) -> float:
        hidden, inner, heads, kv_heads, _ = shape
        sizes = [(hidden, (heads + 2 * kv_heads) * HEAD), (heads * HEAD, hidden), (hidden, 2 * inner), (inner, hidden)]
        layers = [[self.random(wide, narrow) for wide, narrow in sizes] for _ in range(self._layers)]
        inputs = [self.random(tokens, wide) for wide, _ in sizes]

        def step() -> None:
            for layer in layers:
                for given, weights in zip(inputs, layer, strict=True):
                    self.torch.matmul(given, weights)

        return self.timed(step) / self._layers

    def head(self, shape: tuple[int, ...], sequences: int) -> float:
        """Return the time of the last product, with the vocabulary, of one token for each sequence."""
        weights, given = self.random(shape[0], shape[4]), self.random(sequences, shape[0])
        return self.timed(lambda: self.torch.matmul(given, weights))

    def prefill(self, shape: tuple[int, ...], tokens: int) -> float:
        heads, kv_heads = shape[2:4]
        query = self.random(1, heads, tokens, HEAD)
        key, value = self.random(1, kv_heads, tokens, HEAD), self.random(1, kv_heads, tokens, HEAD)
        attend = self.torch.nn.functional.scaled_dot_product_attention
        return self.timed(lambda: attend(query, key, value, is_causal=True, enable_gqa=True))

    def decode(self, shape: tuple[int, ...], sequences: int, context: int) -> float:
        """Return the time of decode attention. Queries that share a key head are one product: each key is read once."""
        heads, kv_heads = shape[2:4]
        query = self.random(sequences, kv_heads, heads // kv_heads, HEAD)
        kv = [
            (self.random(sequences, kv_heads, context, HEAD), self.random(sequences, kv_heads, context, HEAD))
            for _ in range(self._layers)
        ]
        attend = self.torch.nn.functional.scaled_dot_product_attention

        def step() -> None:
            for key, value in kv:
                attend(query, key, value)

        return self.timed(step) / self._layers

    def copy(self, direction: str, size: int) -> float:
        host = self.torch.empty(size, dtype=self.torch.uint8, pin_memory=self.cuda)
        here, there = (self.torch.empty(size, dtype=self.torch.uint8, device=self.device) for _ in range(2))
        source, target = {
            "host to device": (host, here),
            "device to host": (here, host),
            "device to device": (here, there),
        }[direction]
        return self.timed(lambda: target.copy_(source, non_blocking=True), graph=False)

    @property
    def _layers(self) -> int:
        return LAYERS if self.cuda else 1

    def timed(self, step: Callable[[], object], *, graph: bool = True) -> float:
        """Return the median of the replays."""
        with self.torch.inference_mode():
            for _ in range(2):
                step()
            if not self.cuda:
                began = time.perf_counter()
                step()
                return time.perf_counter() - began
            self.torch.cuda.synchronize()
            run = self._graph(step) if graph else step
            times = []
            for _ in range(REPLAYS):
                begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                run()
                end.record()
                self.torch.cuda.synchronize()
                times.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(times)

    def _graph(self, step: Callable[[], object]) -> Callable[[], object]:
        made = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(made):
            step()
        made.replay()
        return made.replay  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
