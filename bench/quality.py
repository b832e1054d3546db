"""The latencies of users: the same load through Weir and through other routers, in front of simulated engines.

    .venv/bin/python -m bench.quality [--routers weir weir:lpwl sglang-router vllm-router] [--traces conversation]
                                      [--loads 0.5 1.0] [--seeds 2] [--requests 300] [--rates conversation=1]

For each trace, load and seed, a stretch of the trace is played once through each router. Each router is started with
its own engines, all of them empty. A router is `weir`, `weir:STRATEGY`, `weir:STRATEGY,path=value,…`, `sglang-router`,
`vllm-router`, either of these two with `:POLICY`, or `alternate`: no router, the client takes the engines in turn, each
session one of them.

Load 1 of a trace with arrivals is what engines in turn bear: the rate at which they answer all of the stretch when it
comes at once (measured first, or given as --rates). Of the coding-agent sessions, which wait for their
answers, it is six sessions for each engine. Times are the engines' own. Engines must keep time: "late" is the 99th
percentile of how late they were, "busy" what the machine did; more than 0.8 says nothing about routers.
Differences are paired by request, with the interval that holds them with 95 % of resamples of the requests.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.peers import PEERS, Setting, Unavailable, process, serving
from bench.router import free_ports
from controlplane.evidence.experiments.replay.drive import OfferedLoad
from controlplane.evidence.experiments.replay.prompts import PromptWriter
from controlplane.evidence.experiments.replay.thread import ReplayThread
from controlplane.evidence.experiments.results import records
from controlplane.evidence.experiments.results.statistics import stats
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.types import TraceRequest
from fleet.counted import percent
from router.policy.schema import document

ROOT = Path(__file__).resolve().parent.parent
MODEL = "bench"
FILES = {
    "conversation": "conversation_trace.jsonl",
    "coding-agent": "coding_agent_trace.jsonl",
    "azure-code": "azure_code_2023.csv",
}
# Load that two quiet cores bear with room to spare: some ten requests a second by the wall clock.
TIME_SCALES = {"conversation": 8.0, "coding-agent": 8.0, "azure-code": 1.5}
ROUTERS = ("weir", "sglang-router", "vllm-router", "alternate")
SESSIONS_EACH = 6  # sessions per engine at load 1
SESSION_GAP_S = 5.0
THINK_MOST_S = 30.0  # a longer pause would leave a short stretch without load
LASTS_MOST = 1.5  # longest session, as a factor on the median one
TOKEN_S = 0.03
SATURATED = 0.9  # share of the requests after which the last ones no longer fill the engines
PROMPT_TOKENS = "vllm:prompt_tokens_total"


@dataclass(frozen=True)
class Outcome:
    """Outcome of one run."""

    found: dict[int, records.Record]  # records by index in the stretch
    tokens: list[float]  # prompt tokens of each engine
    late_s: float  # wall-clock delay of the engines
    busy: float  # share of all CPUs, 0–1


@dataclass
class Arm:
    """One router under one load, with all seeds."""

    runs: dict[int, Outcome] = field(default_factory=dict)  # outcomes by seed
    why: str = ""  # why it could not take part

    @property
    def answered(self) -> dict[tuple[int, int], records.Record]:
        return {(seed, i): one for seed, run in self.runs.items() for i, one in run.found.items() if one.ttft_ms}


def stretch(options: argparse.Namespace, trace: str, seed: int, load: float, rate: float) -> OfferedLoad:
    """Return the stretch. `rate`: requests per second at load 1, for a trace with arrivals."""
    whole = registry.read((Path(options.data) / FILES[trace]).read_bytes(), seed)
    window = options.window - 1
    if whole.pacing == "closed_loop":
        chosen = sessions(whole.requests, window, round(load * SESSIONS_EACH * options.engines), seed, options.requests)
    else:
        fitting = [one for one in whole.requests if one.input_tokens + one.output_tokens <= window]
        start = random.Random(seed).randrange(max(len(fitting) - options.requests, 1))
        chosen = at_rate(fitting[start : start + options.requests], load * rate)
    numbered = [replace(one, index=index) for index, one in enumerate(chosen)]
    writer = PromptWriter(salt=f"{trace}{seed}")
    return OfferedLoad(numbered, whole.pacing, 1e9, options.time_scale or TIME_SCALES[trace], MODEL, writer)


def at_rate(requests: Sequence[TraceRequest], rate: float) -> list[TraceRequest]:
    """Scale the arrivals to that many per second; all at once for an infinite rate."""
    first, last = requests[0].at_s, requests[-1].at_s
    factor = len(requests) / rate / (last - first)
    return [replace(one, at_s=(one.at_s - first) * factor) for one in requests]


def sessions(requests: Sequence[TraceRequest], window: int, count: int, seed: int, total: int) -> list[TraceRequest]:
    """Return the first turns of the given number of sessions, drawn by the seed; sessions start one after the other."""
    draw = random.Random(seed)
    turns: dict[str, list[TraceRequest]] = defaultdict(list)
    for one in registry.window(requests, float("inf"), window):
        turns[one.session].append(one)
    each = -(-total // count)
    lasts = {name: sum(map(_lasts_s, found[:each])) for name, found in turns.items() if len(found) >= each}
    # A session much longer than the others would end alone, on engines that have nothing else to do.
    longest = LASTS_MOST * statistics.median(lasts.values())
    usual = sorted(name for name, seconds in lasts.items() if seconds <= longest)
    chosen = []
    for name in draw.sample(usual, count):
        start = draw.uniform(0, SESSION_GAP_S * count / 4)
        for one in turns[name][:each]:
            chosen.append(replace(one, at_s=start, think_s=min(one.think_s, THINK_MOST_S)))
    return chosen


def _lasts_s(turn: TraceRequest) -> float:
    """Estimate the duration, not counting the prompt."""
    return min(turn.think_s, THINK_MOST_S) + TOKEN_S * turn.output_tokens


@contextmanager
def engines(options: argparse.Namespace, time_scale: float) -> Iterator[list[int]]:
    """Run engines; yield their ports."""
    words = ["--port", "0", "--model", MODEL, "--time-scale", time_scale, "--gpu", options.gpu]
    words += ["--model-profile", options.model_profile, "--max-model-len", options.window]
    if options.kv_blocks:
        words += ["--kv-blocks", options.kv_blocks]
    with ExitStack() as stack:
        argv = [sys.executable, "-m", "fleet.simengine", *words]
        # sglang-router tries gRPC first, about which each engine would complain.
        pipes = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        started = [stack.enter_context(process(argv, **pipes)) for _ in range(options.engines)]
        yield [int(one.stdout.readline().rpartition(b":")[2]) for one in started if one.stdout is not None]


@contextmanager
def router(name: str, ports: list[int], folder: Path) -> Iterator[list[str]]:
    """Run a router; yield the URLs that the client takes in turn."""
    kind, _, policy = name.partition(":")
    if kind == "alternate":
        yield [f"http://127.0.0.1:{port}" for port in ports]
        return
    setting = Setting(folder, ports, free_ports(2), [], [], None, *([policy] if policy else []))
    started: Callable[[Setting], object] = weir if kind == "weir" else PEERS[kind]
    with started(setting) as running:  # type: ignore[attr-defined]
        yield [f"http://127.0.0.1:{running.port}"]


@contextmanager
def weir(setting: Setting) -> Iterator[object]:
    """Run Weir alone, with its default policy except for `setting.policy`: `STRATEGY,path=value,…`."""
    strategy, *values = setting.policy.split(",")
    made = document.default() if strategy == Setting.policy else document.default(strategy)
    made = document.apply_overrides(made, {path: json.loads(value) for path, value in (v.split("=") for v in values)})
    policy = setting.folder / "policy.json"
    policy.write_text(json.dumps(made))
    argv = [sys.executable, "-m", "router", "--instances", ",".join(setting.urls), "--policy", policy]
    argv += ["--model", MODEL, "--port", setting.port, "--log-level", "warning"]
    with serving(setting, argv, "weir", "/healthz") as running:
        yield running


def play(options: argparse.Namespace, name: str, load: OfferedLoad) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as made, engines(options, load.time_scale) as ports:
        folder = Path(made)
        with router(name, ports, folder) as urls:
            direct = [f"http://127.0.0.1:{port}" for port in ports]
            replay = ReplayThread(load, urls, direct, folder / "records")
            replay.start()
            facts = replay.finish()
            found = {one.index: one for one in records.read(folder / "records")}
            if options.keep:
                keep(options.keep, urls[0], name, folder)
        tokens = [prompt_tokens(port) for port in ports]
        return Outcome(found, tokens, facts.sim_lag_p99_s or 0.0, facts.machine_busy or 0.0)


def keep(into: Path, url: str, name: str, folder: Path) -> None:
    """Save the records, and Weir's receipts."""
    into.mkdir(parents=True, exist_ok=True)
    number = len(list(into.glob("*.records")))
    stem = into / f"{number:03d}-{name}".replace(",", "_")
    Path(f"{stem}.records").write_bytes((folder / "records").read_bytes())
    if name.startswith("weir"):
        Path(f"{stem}.receipts").write_bytes(fetch(f"{url}/receipts"))


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def prompt_tokens(port: int) -> float:
    page = fetch(f"http://127.0.0.1:{port}/metrics").decode()
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(PROMPT_TOKENS))


def borne(options: argparse.Namespace, trace: str) -> float:
    """Return the requests per second that engines in turn answer if all come at once."""
    whole = play(options, "alternate", stretch(options, trace, 1, 1.0, float("inf")))
    ends = sorted(one.sent_s + one.e2e_ms / 1000 for one in whole.found.values() if one.e2e_ms)
    return SATURATED * len(ends) / stats.quantile(ends, SATURATED)


COLUMNS = ("n", "failed", "TTFT p50", "p90", "p99", "E2E p50", "p90", "cached", "balance", "late ms", "busy")
DIFFERENCES = (("ttft", "TTFT p50", 0), ("ttft", "TTFT p90", 1), ("e2e", "E2E p50", 0), ("e2e", "E2E p90", 1))


def table(title: str, arms: dict[str, Arm]) -> str:
    base, columns = next(iter(arms)), [*COLUMNS, *(f"Δ {name}" for _, name, _ in DIFFERENCES)]
    lines = [f"**{title}**", "", f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    found = {latency: differences(arms, base, latency) for latency in ("ttft", "e2e")}
    for name, arm in arms.items():
        cells = [arm.why] if not arm.runs else figures(arm) + [found[of][name][which] for of, _, which in DIFFERENCES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def figures(arm: Arm) -> list[str]:
    every = [one for run in arm.runs.values() for one in run.found.values()]
    answered = list(arm.answered.values())
    ttft, e2e = (stats.quantiles([getattr(one, name) / 1000 for one in answered]) for name in ("ttft_ms", "e2e_ms"))
    prompt = sum(one.prompt_tokens or 0 for one in answered)
    balance = statistics.fmean(max(run.tokens) / statistics.fmean(run.tokens) for run in arm.runs.values())
    return [
        str(len(every)),
        str(len(every) - len(answered)),
        *(f"{value:.2f}" for value in (*ttft, *e2e[:2])),
        percent(sum(one.cached_tokens or 0 for one in answered) / max(prompt, 1), ".1f"),
        f"{balance:.2f}",
        f"{1000 * max(run.late_s for run in arm.runs.values()):.0f}",
        f"{max(run.busy for run in arm.runs.values()):.2f}",
    ]


def differences(arms: dict[str, Arm], base: str, latency: str) -> dict[str, list[str]]:
    """Return the difference of each quantile in seconds, with its interval, over the requests that both have
    answered."""
    found = {base: ["" for _ in stats.QUANTILES]}
    mine = arms[base].answered
    for name, arm in arms.items():
        if name == base or not arm.runs:
            continue
        theirs = arm.answered
        keys = sorted(mine.keys() & theirs.keys())
        rows = {at: [getattr(of[key], f"{latency}_ms") / 1000 for key in keys] for at, of in ((0, mine), (1, theirs))}
        pairs = stats.differences({"base": rows[0], "arm": rows[1]})["arm", "base"]
        found[name] = [f"{one.difference:+.2f} ({one.low:+.2f} to {one.high:+.2f})" for one in pairs]
    return found


def compare(options: argparse.Namespace, trace: str, load: float, rate: float) -> dict[str, Arm]:
    """Run routers in turn, seed by seed, so that other work on the machine affects all alike."""
    arms = {name: Arm() for name in options.routers}
    for seed in range(1, options.seeds + 1):
        played = stretch(options, trace, seed, load, rate)
        for name, arm in arms.items():
            try:
                arm.runs[seed] = play(options, name, played)
            except Unavailable as why:
                arm.why = str(why)
    return arms


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", nargs="+", default=ROUTERS, help="the first is what the others are compared with")
    parser.add_argument("--traces", nargs="+", default=list(FILES), choices=FILES)
    parser.add_argument("--loads", nargs="+", type=float, default=[0.5, 1.0])
    parser.add_argument("--seeds", type=int, default=2, help="how many")
    parser.add_argument("--requests", type=int, default=300, help="of one run, at most 1,000")
    parser.add_argument("--rates", nargs="*", default=[], metavar="TRACE=RATE", help="requests/s at load 1")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--gpu", default="h200_sxm")
    parser.add_argument("--model-profile", default="Qwen3-32B")
    parser.add_argument("--kv-blocks", type=int, help="per engine, of 16 tokens; default: what fits beside the model")
    parser.add_argument("--window", type=int, default=131_072, help="tokens of the longest prompt with its answer")
    parser.add_argument("--time-scale", type=float, help=f"of engines and arrivals; default: {TIME_SCALES}")
    parser.add_argument("--data", default=os.environ.get("WEIR_TRACE_DIR", "."), help="folder of the traces")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave records and Weir's receipts there")
    options = parser.parse_args()
    for trace in options.traces:
        if not (Path(options.data) / FILES[trace]).is_file():
            parser.error(f"--data (or WEIR_TRACE_DIR) {options.data}: there is no {FILES[trace]} there")
    return options


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # otherwise the started processes would stay
    rates = {name: float(value) for name, value in (given.split("=") for given in options.rates)}
    for trace in options.traces:
        if trace not in rates and trace != "coding-agent":
            rates[trace] = borne(options, trace)
        for load in options.loads:
            arms = compare(options, trace, load, rates.get(trace, 0.0))
            told = f" of {rates[trace]:.2f} requests/s" if trace in rates else ""
            print(table(f"{trace}, load {load:g}{told}", arms), flush=True)
    told = f"{options.engines} engines of {options.model_profile} on {options.gpu}"
    print(f"Times in s. {told}; {options.requests} requests for each of {options.seeds} seeds.")


if __name__ == "__main__":
    main()
