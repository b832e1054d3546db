"""The distance of profiles from measured closed loops of vLLM, by group of model, format, GPU.

    .venv/bin/python -m bench.profiles FILE.csv [--each 12] [--group TEXT] [--budget N] [--host MS --decode US]

FILE.csv: columns as in aiconfigurator-core's `silicon_sample.csv`. The clients begin at once, each sends ten requests
one after the other; lengths are uniform in 0.8 to 1.0 of the stated ones (of Qwen3-32B: the stated ones, and a chunk
budget of 1.5 prompts). Points without a profile are counted as left out. `--each`: points of a group at most, evenly
spaced. `--host`, `--decode`: instead of the host's constants, per step and per layer and sequence. Ranks that share
experts are loaded alike and step together; `--apart`: one of them plays alone. `--ranks`: only points of several.
"""

import argparse
import csv
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from fleet.engine.engine import Engine
from fleet.engine.law import Law, law_of
from fleet.engine.lockstep import Lockstep
from fleet.engine.profiles import FITS, VERSION, Profile, UnknownProfile, kv_blocks, profile
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Limits

BUDGET = 8192  # tokens of a step
NAMES = {  # model and format of the file → of the catalogue
    ("Qwen/Qwen3-32B", ""): "Qwen3-32B",
    ("meta-llama/Llama-3.1-70B", "fp8"): "Llama-3.1-70B-Instruct-FP8",
    ("meta-llama/Llama-3.1-70B", "nvfp4"): "Llama-3.1-70B-NVFP4",
    ("openai/gpt-oss-120b", "nvfp4"): "gpt-oss-120b",  # labelled nvfp4, but it is MXFP4
    ("MiniMaxAI/MiniMax-M2.5", "fp8"): "MiniMax-M2.5",
    ("MiniMaxAI/MiniMax-M2.5", "nvfp4"): "MiniMax-M2.5-NVFP4",
    ("moonshotai/Kimi-K2.5", "nvfp4"): "Kimi-K2.5-NVFP4",
    ("moonshotai/Kimi-K2.5", "int4_wo"): "Kimi-K2.5",
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8"): "Qwen3-235B-A22B-FP8",
}


@dataclass(frozen=True, slots=True)
class Point:
    profile: Profile
    ranks: int
    clients: int  # clients per rank
    prompt: int
    output: int
    ttft_s: float
    tpot_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--each", type=int, default=12)
    parser.add_argument("--group", default="")
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--host", type=float)
    parser.add_argument("--decode", type=float)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--ranks", action="store_true")
    options = parser.parse_args()
    groups, left_out = points(csv.DictReader(options.file.read_text().splitlines()))
    print("group, n, mean |error| (bias) in %: TTFT, TPOT, E2E; left out")
    for group in sorted({*groups, *left_out}):
        if options.group not in group:
            continue
        every = [one for one in groups[group] if one.ranks > 1 or not options.ranks]
        if not every:
            continue
        chosen = (
            [every[i * len(every) // options.each] for i in range(options.each)] if len(every) > options.each else every
        )
        rows = [errors(one, options) for one in chosen]
        figures = "  ".join(
            f"{fmean(map(abs, column)) * 100:5.1f} ({fmean(column) * 100:+.1f})" for column in zip(*rows, strict=True)
        )
        print(f"{group:34} {len(rows):3}  {figures}  {dict(left_out[group]) or ''}", flush=True)


def points(rows: Iterable[dict[str, str]]) -> tuple[dict[str, list[Point]], dict[str, dict[str, int]]]:
    found: dict[str, list[Point]] = defaultdict(list)
    left_out: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        name = NAMES.get((row["model_path"], row["gemm_quant_mode"]))
        if row.get("backend", "vllm") != "vllm" or name is None or not row["tp_size"] or not row["silicon_ttft_ms"]:
            continue
        group = f"{name} {row['system']}"
        try:
            served = _profile(name, row)
        except UnknownProfile as error:
            left_out[group][str(error)[:60]] += 1
            continue
        lengths = int(row["isl"]), int(row["osl"])
        measured = float(row["silicon_ttft_ms"]) / 1e3, float(row["silicon_tpot_ms"]) / 1e3
        ranks = int(row["attention_dp_size"] or 1)
        found[group].append(Point(served, ranks, int(row["batch_size"]), *lengths, *measured))
    return found, left_out


def _profile(name: str, row: dict[str, str]) -> Profile:
    """Return the profile of a row. Rows of n ranks over n² experts' GPUs are n ranks of one GPU."""
    tp, dp, ep = int(row["tp_size"]), int(row["attention_dp_size"] or 1), int(row["moe_ep_size"] or 1)
    if dp > 1 and tp == dp and tp * dp == ep:
        tp, ep = 1, dp
    found = re.match(r"(\d+)\.(\d+)", row["backend_version"])
    version = (int(found[1]), int(found[2])) if found else VERSION
    return profile(row["system"], name, tp, version, dp=dp, expert_parallel=ep > 1)


def errors(point: Point, options: argparse.Namespace) -> tuple[float, float, float]:
    law = law_of(point.profile)
    if options.host is not None:
        law = replace(law, fixed_s=law.fixed_s + options.host / 1e3 - law_of(point.profile).fixed_s)
    if options.decode is not None:
        law = replace(law, decode_s=options.decode * 1e-6 * point.profile.sizes.layers)
    ttft_s, tpot_s = played(point, law, options.budget, apart=options.apart)
    e2e = (ttft_s + tpot_s * (point.output - 1)) / (point.ttft_s + point.tpot_s * (point.output - 1)) - 1
    return ttft_s / point.ttft_s - 1, tpot_s / point.tpot_s - 1, e2e


def played(point: Point, law: Law | None = None, budget: int = BUDGET, *, apart: bool = False) -> tuple[float, float]:
    """Return mean TTFT and TPOT of the point in the twin."""
    dense_bf16 = (
        point.profile.gpu,
        point.profile.model,
        point.profile.tp,
    ) in FITS or point.profile.model == "Qwen3-32B"
    budget = max(point.prompt * 3 // 2, 2048) if dense_bf16 else budget
    limits = Limits(max_num_seqs=1024, max_num_batched_tokens=budget, async_scheduling=point.profile.is_async)
    count = 1 if apart else point.ranks
    blocks = kv_blocks(point.profile, sequences=limits.max_num_seqs, step_tokens=budget)
    engines = [Engine(law or law_of(point.profile), blocks, limits) for _ in range(count)]
    return closed_loop(engines, point, spread=0.0 if dense_bf16 else 0.2)


def closed_loop(engines: list[Engine], point: Point, spread: float, each: int = 10) -> tuple[float, float]:
    """Return mean TTFT and TPOT of engines that step together."""
    draw = random.Random(1)
    over: list[EngineRequest] = []
    clients = point.clients * len(engines)
    left = [each - 1] * clients
    group = Lockstep(engines)
    owner: dict[str, int] = {}

    def send(client: int) -> None:
        prompt, output = (max(2, round(n * draw.uniform(1 - spread, 1))) for n in (point.prompt, point.output))
        first = len(owner) << 24
        request = EngineRequest(str(len(owner)), prompt, output, range(first, first + (prompt + output) // 16))
        owner[request.id] = client
        engine = engines[client % len(engines)]
        engine.add_request(request, engine.clock_s)

    for client in range(clients):
        send(client)
    while len(over) < each * clients:
        turn_s = group.next_turn_s()
        if turn_s is None:
            raise RuntimeError("the engines stand still")
        for request in (one for result in group.turn(turn_s) if result is not None for one in result.finished):
            over.append(request)
            if left[owner[request.id]]:
                left[owner[request.id]] -= 1
                send(owner[request.id])
    return (
        fmean(one.first_token_s - one.arrived_s for one in over),
        fmean((one.finished_s - one.first_token_s) / (one.output_tokens - 1) for one in over),
    )


if __name__ == "__main__":
    main()
