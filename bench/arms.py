"""The design's arms A, B and D over HTTP: each replayed on its own cold pool, through a router.

    .venv/bin/python -m bench.arms [--duration 600] [--time-scale 8] [--seeds 1] [--traces FOLDER] [--write]
    .venv/bin/python -m bench.arms --fleet examples/cpu-nixl.yaml --seeds 2 [--arms A,D] [--sessions 10] [--write]
    .venv/bin/python -m bench.arms --python PYTHON --model Llama-3.1-8B --heavy 8000 --seeds 2 [--gpus 0,0] [--write]

The first plays eight simulated engines of the author's fleet under the coding agent's sessions (generated ones without
FOLDER, which is WEIR_TRACE_DIR), and the same in the twin. The second plays the first pool of a fleet document, whose
engines must move KV: two vLLM over NIXL on the CPU. The third makes such a document for vLLM on GPUs, whose weights are
generated; the engines share one GPU by default, and --share is each one's part of its memory, the pool's own idle
engines included. Real engines get generated sessions, whose first prompts have 0.75 to 1.75 times HEAVY tokens; a seed
draws when they start.

KV moved: requests whose prompt's KV came from another engine; without: offloads that fell back, or failed. Predicted:
of the others, those whose cached tokens were predicted to the token. A starts each comparison; in brackets is the 95 %
interval.
"""

import argparse
import csv
import datetime as dt
import io
import json
import os
import random
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from bench import sheets
from bench.gpu.models import CONFIGS
from bench.played import TRACES
from controlplane.evidence.experiments.matrix import presets
from controlplane.evidence.experiments.results.statistics.stats import quantile_of
from controlplane.evidence.traces.formats.coding_agent import BLOCK_TOKENS, SESSION_GAP_S
from controlplane.tests import real_up
from controlplane.tests.engines.fleet import CODE, PASSWORD, Fleet, all_ready
from router.contract.pools import of_run

DESIGN = (presets.A, presets.B, presets.D[1])  # D at 9.7 GB/s
COLUMNS = (
    *("fleet", "arm", "played", "seeds", "requests", "KV moved", "offloads without", "cached tokens predicted"),
    *("TTFT p50, s", "p90", "TPOT p50, ms", "p90", "E2E p50, s"),
    *("heavy: TTFT p50, s", "heavy: TPOT p90, ms"),
)
AGAINST_A = ("ttft_p50_ms", "tpot_p90_ms")
FIRST, TURN = (0.75, 1.75), 0.1  # prompts of real engines' sessions, as shares of HEAVY
TURNS, ANSWER, PAUSE_S = 4, 48, 3.0
READY_S, PLAYED_S = 900.0, 3_600.0  # limits


def document(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the fleet document of the comparison."""
    if options.fleet:
        return dict(yaml.safe_load(options.fleet.read_text()))
    pool: dict[str, Any] = {"name": "arms", "model": options.model or "bench", "kind": "sim", "replicas": 1}
    if options.python:
        gpus = options.gpus.split(",")
        engine = {"python": options.python, "model": str(folder / "model"), "load_format": "dummy", "kv": "nixl"}
        engine |= {"gpus": gpus, "gpu_memory_utilization": options.share, "max_model_len": 4 * options.heavy}
        environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "CUDA_HOME") if name in os.environ}
        engine["environment"] = {**environment, "HF_HUB_OFFLINE": "1"}
        pool |= {"kind": "vllm", "replicas": len(gpus), "engine": engine}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "arms"}, "spec": {"pools": [pool]}}


@contextmanager
def running(options: argparse.Namespace) -> Iterator[tuple[Fleet, str]]:
    """Run a Weir with the fleet; yield it and the name of the pool."""
    with tempfile.TemporaryDirectory(prefix="weir-arms-", dir="/tmp") as made:
        folder, kept = Path(made), {}
        if options.python:
            (folder / "config.json").write_text(json.dumps(CONFIGS[options.model]))
            script = [options.python, str(CODE / "examples/tiny_model.py"), str(folder / "model")]
            subprocess.run([*script, str(folder / "config.json")], check=True, stdout=subprocess.DEVNULL)
        fleet = document(options, folder)
        file = options.fleet.resolve() if options.fleet else folder / "fleet.yaml"
        if not options.fleet:
            file.write_text(yaml.safe_dump(fleet))
        if options.traces:
            kept["WEIR_TRACE_DIR"] = str(options.traces)
        flags = ("--no-demo", "--fleet", str(file))
        with real_up.running(*flags, WEIR_ADMIN_PASSWORD=PASSWORD, **kept) as weir:
            weir.wait_for("Weir is up", 120)
            here = Fleet(weir)
            here.until(lambda: all_ready(here), "the fleet", READY_S)
            yield here, fleet["spec"]["pools"][0]["name"]


def arms(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the arms; real engines keep their fleet, and their short prompts are heavy from fewer tokens."""
    design = [one for one in DESIGN if str(one["name"])[0] in options.arms]  # type: ignore[index, call-overload]
    if not is_real(options):
        return list(map(presets.on_fleet_of_design, design))
    classes = {"classes.heavy_new_tokens": options.heavy, "classes.warm_new_tokens": options.heavy // 4}
    return [{"name": str(one["name"])[0], "strategy": one["strategy"], "overrides": classes} for one in design]  # type: ignore[index, call-overload]


def is_real(options: argparse.Namespace) -> bool:
    return bool(options.fleet or options.python)


def sessions(options: argparse.Namespace) -> str:
    """Return generated sessions in the coding agent's format: each turn repeats the one before and adds to it."""
    draw, rows = random.Random(1), []
    for number in range(options.sessions):
        tokens, at, think_s = round(draw.uniform(*FIRST) * options.heavy), 0.0, 0.0
        for _ in range(TURNS):
            row = {"session": f"s{number}", "t": round(at, 3), "think_time": round(think_s, 3)}
            row |= {"input_length": tokens, "output_length": ANSWER, "runs": [[0, -(-tokens // BLOCK_TOKENS)]]}
            rows.append(json.dumps(row))
            think_s = PAUSE_S + draw.expovariate(1 / PAUSE_S)
            at += think_s
            tokens += round(TURN * options.heavy) + ANSWER
    return "\n".join(rows)


def trace_of(options: argparse.Namespace, fleet: Fleet) -> str:
    """Return the name of the trace."""
    if not is_real(options):
        return TRACES["coding agent"] if options.traces else "agentic-demo"
    upload(fleet, "arms.jsonl", sessions(options))
    return "arms.jsonl"


def upload(fleet: Fleet, name: str, content: str) -> None:
    fetch(fleet, f"/traces?name={name}", content.encode())


def fetch(fleet: Fleet, path: str, content: bytes | None = None) -> str:
    """Return the text of an answer over REST."""
    token = (fleet.weir.folder / "token").read_text().strip()
    url = f"http://127.0.0.1:{fleet.weir.web_port}/api/v1{path}"
    request = urllib.request.Request(url, content, {"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return str(answer.read().decode())


def played(fleet: Fleet, pool: str, options: argparse.Namespace, trace: str, mode: str) -> Iterator[list[str]]:
    """Play the arms; yield their rows."""
    body = {"name": "A, B and D", "trace": trace, "pool": pool, "mode": mode, "duration_s": options.duration}
    body |= {"seeds": [*range(1, options.seeds + 1)], "arms": arms(options)}
    if is_real(options):
        body["load_factor"] = SESSION_GAP_S / options.every
    elif mode == "replay":
        body["time_scale"] = options.time_scale
    number = fleet.rest("POST", "/experiments", body)[0]["id"]
    of = f"/experiments/{number}"
    fleet.until(lambda: fleet.rest("GET", of)[0]["status"] not in ("queued", "running"), f"the {mode}", PLAYED_S)
    found = fleet.rest("GET", f"{of}/results")[0]
    warnings = [
        found["experiment"]["cause"],
        *found["warnings"],
        *(w for arm in found["arms"] for w in arm["warnings"]),
    ]
    for warning in dict.fromkeys(filter(None, warnings)):
        print(f"{mode}: {warning}", flush=True)
    requests = list(csv.DictReader(io.StringIO(fetch(fleet, f"{of}/results?format=csv"))))
    for arm in found["arms"]:
        mine = [one for one in requests if one["arm"] == arm["name"]]
        caches = cached_over_http(fleet, number, arm) if mode == "replay" else cached_in_twin(mine)
        yield row(arm, mine, found["differences"], caches, options.seeds)


def cached_over_http(fleet: Fleet, number: int, arm: dict[str, Any]) -> list[str]:
    """Return the figures of offloads and caches from receipts, as engines' answers do not name the source of cached
    tokens."""
    pools = [of_run(number, run["id"]) for run in arm["runs"]]
    found = [one for pool in pools for one in fleet.rest("GET", f"/receipts?pool={pool}&limit=500")[0]["receipts"]]
    offloads = [one["offload"] for one in found if one["offload"]]
    moved = offloads.count("ok")
    others = [(one["predicted_cached"] or 0, one["cached_tokens"] or 0) for one in found if one["offload"] != "ok"]
    right = sum(predicted == cached for predicted, cached in others)
    return [part(moved, len(found)), str(len(offloads) - moved), f"{right} of {len(others)}"]


def cached_in_twin(requests: Sequence[dict[str, str]]) -> list[str]:
    return [part(sum(float(one["cached_pulled"] or 0) > 0 for one in requests), len(requests)), "–", "–"]


def part(count: int, whole: int) -> str:
    return f"{count} ({100 * count / whole:.0f} %)" if count else "0"


def row(
    arm: dict[str, Any],
    requests: Sequence[dict[str, str]],
    differences: Sequence[dict[str, Any]],
    caches: Sequence[str],
    seeds: int,
) -> list[str]:
    every, heavy = (arm["classes"].get(name, {}) for name in ("all", "heavy"))
    heavy = heavy if heavy.get("n") else heavy_ones(requests)
    answered = sum(one["outcome"] == "ok" for one in requests)
    ratios = [against(arm["name"], metric, differences) for metric in AGAINST_A]
    return [
        arm["name"],
        str(seeds),
        f"{answered} of {len(requests)}",
        *caches,
        *(seconds(every, name) for name in ("ttft_p50_ms", "ttft_p90_ms")),
        *(ms(every, name) for name in ("tpot_p50_ms", "tpot_p90_ms")),
        seconds(every, "e2e_p50_ms"),
        seconds(heavy, "ttft_p50_ms"),
        ms(heavy, "tpot_p90_ms"),
        *ratios,
    ]


def heavy_ones(requests: Sequence[dict[str, str]]) -> dict[str, float | None]:
    """Return the figures of requests that the router called heavy, since classes of results keep the design's limit."""
    mine = [one for one in requests if one["routed_class"] == "heavy"]
    ttft, tpot = ([float(one[name]) for one in mine if one[name]] for name in ("ttft_ms", "tpot_ms"))
    return {"ttft_p50_ms": quantile_of(ttft, 0.5), "tpot_p90_ms": quantile_of(tpot, 0.9)}


def seconds(values: Mapping[str, float | None], name: str) -> str:
    value = values.get(name)
    return "–" if value is None else f"{value / 1000:.2f}"


def ms(values: Mapping[str, float | None], name: str) -> str:
    value = values.get(name)
    return "–" if value is None else f"{value:.1f}"


def against(arm: str, metric: str, differences: Sequence[dict[str, Any]]) -> str:
    """Return the change from A with its interval, in %."""
    for one in differences:
        if (one["arm"], one["baseline"], one["class"], one["metric"]) == (arm, "A", "all", metric):
            low, high = (one[name] for name in ("relative_low", "relative_high"))
            return f"{100 * one['relative']:+.0f} % ({100 * low:+.0f} to {100 * high:+.0f})"
    return "–"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleet", type=Path, metavar="FILE")
    parser.add_argument("--python", help="the interpreter of vLLM's environment, on a machine with a GPU")
    parser.add_argument("--model", choices=list(CONFIGS), help="with --python")
    parser.add_argument("--gpus", default="0,0", help="one for each engine, with --python")
    parser.add_argument(
        "--share", type=float, default=0.22, help="of a GPU's memory for each engine, with --python; 0.22 of 141 GB"
    )
    parser.add_argument("--arms", default="A,B,D", help="of the design; A first")
    parser.add_argument("--heavy", type=int, default=1_500, help="tokens from which real engines' prompts are heavy")
    parser.add_argument("--sessions", type=int, default=10, help="of real engines")
    parser.add_argument("--every", type=float, default=6.0, metavar="S", help="between starts of these sessions")
    parser.add_argument("--duration", type=float, default=600.0, help="s of the trace")
    parser.add_argument("--time-scale", type=float, default=8.0, help="of simulated engines")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--traces", type=Path, default=os.environ.get("WEIR_TRACE_DIR"), metavar="FOLDER")
    parser.add_argument("--write", action="store_true", help="into docs/findings/tables")
    options = parser.parse_args()
    if bool(options.python) is not bool(options.model):
        parser.error("--python and --model belong together")
    return options


def main() -> None:
    options = arguments()
    title = (
        f"2 × {options.model}" if options.python else options.fleet.stem if options.fleet else "8 sim, author's fleet"
    )
    rows = []
    with running(options) as (fleet, pool):
        trace = trace_of(options, fleet)
        for mode in ("replay",) if is_real(options) else ("twin", "replay"):
            about = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, load average {os.getloadavg()[0]:.1f}"
            for arm, *values in played(fleet, pool, options, trace, mode):
                rows.append([title, arm, "over HTTP" if mode == "replay" else mode, *values, about])
                print("| " + " | ".join(rows[-1]) + " |", flush=True)
    if options.write:
        columns = [*COLUMNS, "TTFT p50 against A", "TPOT p90 against A", "measured"]
        sheets.save("arms", [columns, *sheets.updated("arms", rows, named_by=3).values()])


if __name__ == "__main__":
    main()
