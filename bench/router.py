"""The cost of the router beside others: CPU per request, throughput, latency, memory, in one run on the same cores.

    .venv/bin/python -m bench.router [--seconds 4] [--rounds 3] [--shapes unary,burst,burst80,paced]
                                     [--routers weir,weir-compiled,weir-alone,floor,sglang-router,smg,…]
                                     [--rate N]… [--profile FILE] [--against CHECKOUT|COMMIT] [--python PYTHON]
                                     [--spans 1%,100%] [--collector-away] [--tls] [--write]

Prints two tables for each shape of response. In the first, a closed loop, every connection sends its next request as
soon as it has its response: requests/s is the most that a router can do, and a latency is little else than the
connections divided by it. In the second, all routers get requests at one rate: half of what the slowest except LiteLLM
did in the closed loop, or N (a table for each N). Requests are due at the same random times for all routers, and a
latency counts from then, including the wait for one of the 64 connections. A router that answers less than 98 % of the
rate did not keep up: its queue grows with the time of the measurement, so its latencies are left out.

Engines (bench/upstream/) and clients (bench/load/) are small C programs, built here with gcc. The router under test has
its own core (if the machine is quiet); engines, clients and Redis share another. All routers run all the time and are
measured in turn, round by round, so that other load on the machine affects all of them. CPU is that of a router's whole
process tree, "+ Redis" that of Weir's Redis. With --against, each Weir also runs from another checkout, or a commit
of this one, measured in turn with this one, with --python under another interpreter. With --spans, each Weir also runs
with that share of its requests sampled, however many they are, and a collector that takes all their spans; with
--collector-away also with one that takes connections and never answers. With --tls the routers reach the engines over
https://, through an Envoy that shares the engines' core. Prints Markdown. --write remakes the table of
bench/README.md (bench/beside.py).
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench import beside
from bench.peers import PEERS, WEIR, Running, Setting, Unavailable, cpu_s, kernel_s, memory_mb, process, tree
from bench.terminator import terminator

HERE = Path(__file__).resolve().parent
ENGINES = 4
SESSIONS = 64
WARM_S = 0.5
PORTS_EACH = 2  # ports per router: its own and that of its metrics
KEEPS_UP = 0.98  # share of the offered rate
Result = dict[str, float]
Rows = dict[str, list[Result] | str]  # a router's results, round by round, or why there are none
Routers = dict[str, Running | str | None]  # the router, or why it does not run; None: the engines themselves


@dataclass(frozen=True)
class Shape:
    title: str
    answer: str  # answer of the engines: unary, burst, paced
    base: int  # bytes of a session's first body
    step: int  # bytes by which each next body is longer
    turns: int  # turns per session; after them a new session begins
    connections: int


SHAPES = {
    "unary": Shape("unary, 4 KB", "unary", 3_072, 512, 5, 16),
    "burst": Shape("64 chunks back to back, 4 KB", "burst", 3_072, 512, 5, 16),
    "burst80": Shape("64 chunks back to back, 80 KB", "burst", 56_320, 4_096, 13, 16),
    "paced": Shape("64 chunks 5 ms apart, 4 KB", "paced", 3_072, 512, 5, 64),
    "long": Shape("unary, prompts of about 100,000 tokens, 400 to 450 KB", "unary", 400_000, 10_000, 6, 4),
}
LATENCIES = ("ttfb_p50", "ttfb_p99", "e2e_p50", "e2e_p99")


@dataclass(frozen=True)
class Arrivals:
    """The times at which requests are due."""

    rate: float  # requests per second
    seed: int


def bodies(shape: Shape, file: Path) -> None:
    """Write chats of many sessions: all share the first quarter of the first body; the rest is the session's own."""
    draw = random.Random(1)
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]

    def text(size: int) -> str:
        return " ".join(draw.choices(words, k=size // 5 + 1))[:size].ljust(size, ".")

    system = text(shape.base // 4)
    with file.open("w") as out:
        for session in range(SESSIONS):
            stream = "" if shape.answer == "unary" else '"stream":true,'
            head = f'{{"model":"bench","max_tokens":64,{stream}"user":"s{session}-g000000","messages":['
            head += f'{{"role":"system","content":"{system}"}},{{"role":"user","content":"s{session}-g000000 '
            out.write(head + text(shape.base - len(head) - 2) + '"}')
            for _ in range(shape.turns - 1):
                reply = '"},{"role":"user","content":"'
                turn = ',{"role":"assistant","content":"' + text(shape.step // 2) + reply
                out.write(turn + text(shape.step - len(turn) - 2) + '"}')


def free_ports(number: int) -> int:
    """Return the first of that many consecutive ports that are free now."""
    while True:
        first = random.randint(20_000, 30_000)
        try:
            for port in range(first, first + number):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


def url_of(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def build(name: str, folder: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("bench/router.py needs a C compiler (apt-get install gcc)")
    binary = folder / name
    subprocess.run([compiler, "-O2", "-o", binary, HERE / name / f"{name}.c", "-lm"], check=True)
    return binary


def wait_for_answer(url: str, limit_s: float = 10.0) -> None:
    """Ask the engines, which may take a moment to listen on a busy machine."""
    ends = time.monotonic() + limit_s
    while True:
        try:
            urllib.request.urlopen(url, timeout=limit_s).read()
            return
        except urllib.error.URLError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)


class Bench:
    def __init__(
        self, folder: Path, options: argparse.Namespace, stack: ExitStack, engines: int = ENGINES, *, tls: bool = False
    ) -> None:
        self.folder, self.options, self.stack = folder, options, stack
        cores = sorted(os.sched_getaffinity(0))
        self.pin, self.pin_rest = (["taskset", "-c", str(core)] for core in (cores[0], cores[-1]))
        shares: list[float] = options.spans
        first = free_ports(2 * engines + 1 + PORTS_EACH * (len(PEERS) + (len(WEIR) + 1) * (2 + 2 * len(shares))))
        self.engines = list(range(first, first + engines))
        self.collector = first + engines  # port that answers as an engine does, and accepts every span
        self.outer = list(range(self.collector + 1, self.collector + 1 + engines))  # the engines' ports with TLS
        self.ports = count(self.outer[-1] + 1, PORTS_EACH)
        self.silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        self.generation = count(1, 10_000)
        self.load = build("load", folder)
        stack.enter_context(process([*self.pin_rest, build("upstream", folder), first, engines + 1]))
        self.authority: Path | None = None
        if tls:
            pairs = list(zip(self.outer, self.engines, strict=True))
            self.authority = stack.enter_context(terminator(folder, pairs, self.pin_rest))

    def start_all(self) -> Routers:
        names = self.options.routers.split(",")
        routers: Routers = {name: self.start(name) for name in names}
        for name in (name for name in names if name.startswith("weir") and self.options.python is not None):
            routers[f"{name} under {self.options.python}"] = self.start(name, python=self.options.python)
        for name in (name for name in names if name in WEIR):
            if self.options.against is not None:
                routers[f"{name} in {self.options.against.name}"] = self.start(name, self.options.against)
            for share in self.options.spans:
                routers[f"{name}, spans {share:.4g} %"] = self.start(name, env=self.sampled(share))
                if self.options.collector_away:
                    away = self.sampled(share) | {"OTEL_EXPORTER_OTLP_ENDPOINT": url_of(self.silent)}
                    del away["OTEL_BSP_MAX_QUEUE_SIZE"]  # restores its default
                    routers[f"{name}, spans {share:.4g} %, no collector"] = self.start(name, env=away)
        return routers

    def sampled(self, percent: float) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.collector}",
            "OTEL_TRACES_SAMPLER_ARG": str(percent / 100),
            "WEIR_SPANS_PER_S": "1000000",
            "OTEL_BSP_MAX_QUEUE_SIZE": "100000",
        }

    def start(
        self,
        name: str,
        checkout: Path = HERE.parent,
        env: dict[str, str] | None = None,
        python: str = sys.executable,
    ) -> Running | str:
        """Start the router, or return why it cannot start."""
        folder = Path(tempfile.mkdtemp(prefix=name, dir=self.folder))
        profile = self.options.profile
        engines = self.outer if self.authority is not None else self.engines
        setting = Setting(
            *(folder, engines, next(self.ports), self.pin, self.pin_rest, profile),
            checkout=checkout,
            python=python,
            env=env or {},
            authority=self.authority,
        )
        try:
            return self.stack.enter_context(PEERS[name](setting))
        except Unavailable as why:
            return str(why)

    def prepare(self, shape: Shape) -> None:
        bodies(shape, self.folder / "bodies")
        for port in self.engines:
            wait_for_answer(f"http://127.0.0.1:{port}/answer/{shape.answer}")

    def play(self, shape: Shape, ports: Iterable[int], seconds: float, arrivals: Arrivals | None = None) -> Result:
        """Play a closed loop, or a connection for each session with requests that are due at their arrivals."""
        open_loop = ["-r", arrivals.rate, "-s", arrivals.seed] if arrivals else []
        connections = SESSIONS if arrivals else shape.connections
        numbers = (SESSIONS, shape.base, shape.step, shape.turns, next(self.generation), connections, seconds)
        argv = [*self.pin_rest, self.load, *open_loop, self.folder / "bodies", *numbers, *ports]
        run = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, check=True)
        result: Result = json.loads(run.stdout)
        return result

    def measure(self, shape: Shape, router: Running | None, arrivals: Arrivals | None) -> Result:
        ports = [router.port] if router is not None else self.engines
        self.play(shape, ports, WARM_S, arrivals)
        pids = tree(router.process.pid) if router is not None else []
        helper = [router.helper] if router is not None and router.helper is not None else []
        before, helper_before, kernel_before = cpu_s(pids), cpu_s(helper), kernel_s(pids)
        result = self.play(shape, ports, self.options.seconds, arrivals)
        each = 1000 / max(result["n"], 1)
        cpu = {"cpu_ms": (cpu_s(pids) - before) * each, "redis_ms": (cpu_s(helper) - helper_before) * each}
        cpu["kernel_ms"] = (kernel_s(pids) - kernel_before) * each
        per_s = result["pace"] * arrivals.rate if arrivals else result["n"] / result["seconds"]
        return {**result, **cpu, "per_s": per_s, "mb": memory_mb(pids)}

    def compare(self, shape: Shape, routers: Routers, rate: float = 0.0) -> Rows:
        """Measure all routers in turn, round by round; without a rate, in a closed loop."""
        running = {name: router for name, router in routers.items() if not isinstance(router, str)}
        rounds: dict[str, list[Result]] = {name: [] for name in running}
        for seed in range(self.options.rounds):
            arrivals = Arrivals(rate, seed) if rate else None
            for name, router in running.items():
                rounds[name].append(self.measure(shape, router, arrivals))
        return {name: router if isinstance(router, str) else rounds[name] for name, router in routers.items()}


def middle(rounds: list[Result], column: str) -> float:
    return statistics.median(one[column] for one in rounds)


def half_of_the_slowest(rows: Rows) -> list[int]:
    """Return the rate to offer to all; LiteLLM's would load no other router. Empty if no other router runs."""
    reached = [
        middle(rounds, "per_s")
        for name, rounds in rows.items()
        if name not in ("direct", "litellm") and not isinstance(rounds, str)
    ]
    return [max(1, round(min(reached) / 2))] if reached else []


def table(title: str, rows: Rows, rate: float = 0.0) -> str:
    lines = [
        f"**{title}**",
        "",
        "| | CPU ms (least–most) | in the kernel | + Redis | requests/s "
        "| TTFB p50 | p99 | E2E p50 | p99 | MB | n | failed | unsent |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, rounds in rows.items():
        lines.append(f"| {name} | {rounds} |" if isinstance(rounds, str) else row(name, rounds, rate))
    return "\n".join([*lines, ""])


def row(name: str, rounds: list[Result], rate: float) -> str:
    """Return a row of medians of the rounds, and sums of answered, failed and unsent requests."""
    costs = [one["cpu_ms"] for one in rounds]
    served = middle(rounds, "per_s")
    keeps_up = served >= KEEPS_UP * rate
    direct = name == "direct"
    cells = [
        name if keeps_up else f"{name}: could not keep up",
        "–" if direct else f"{middle(rounds, 'cpu_ms'):.3f} ({min(costs):.3f}–{max(costs):.3f})",
        "–" if direct else f"{middle(rounds, 'kernel_ms'):.3f}",
        f"{middle(rounds, 'redis_ms'):.3f}" if middle(rounds, "redis_ms") else "",
        f"{served:,.0f}",
        *(f"{middle(rounds, column):.2f}" if keeps_up else "–" for column in LATENCIES),
        "" if direct else f"{middle(rounds, 'mb'):.0f}",
        *(f"{sum(one[column] for one in rounds):,.0f}" for column in ("n", "failed", "unsent")),
    ]
    return "| " + " | ".join(cells) + " |"


def percents(text: str) -> list[float]:
    return [float(word.removesuffix("%")) for word in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--routers", default=",".join(PEERS))
    parser.add_argument("--rate", type=float, action="append", metavar="N", help="requests/s of the second table")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT|COMMIT", help="of Weir's code")
    parser.add_argument("--python", metavar="PYTHON", help="that has Weir's dependencies, too")
    parser.add_argument("--spans", type=percents, default=[], metavar="SHARES", help="of Weir's requests: 1%%,100%%")
    parser.add_argument("--collector-away", action="store_true", help="also without an answer from the collector")
    parser.add_argument("--tls", action="store_true", help="to the engines, whose certificates a file vouches for")
    parser.add_argument("--write", action="store_true", help="into bench/README.md")
    parser.add_argument("--profile", metavar="FILE", help="run Weir under cProfile and save its statistics")
    return parser.parse_args()


def checked_out(against: Path, folder: Path) -> Path:
    """Return the checkout of that path, or of a commit of this one."""
    if against.is_dir():
        return against.resolve()
    made = folder / against.name
    made.mkdir()
    packed = subprocess.run(["git", "archive", str(against)], cwd=HERE.parent, stdout=subprocess.PIPE)
    if packed.returncode:
        sys.exit(f"--against {against}: it is no folder, and no commit of {HERE.parent}")
    subprocess.run(["tar", "-x", "-C", made], input=packed.stdout, check=True)
    return made


def of_table(routers: Routers, options: argparse.Namespace) -> str:
    """Return the Weir that the table shows: the first of --routers, under --python if there is one. Exit unless it
    runs."""
    name = next((name for name in options.routers.split(",") if name.startswith("weir")), "weir")
    if options.python is not None:
        name = f"{name} under {options.python}"
    if isinstance(why := routers.get(name, "--routers does not name it"), str):
        sys.exit(f"--write: {name}: {why}")
    return name


def write(shown: list[beside.Shown], weir: str, options: argparse.Namespace, loads: str) -> None:
    earlier = options.against.name if options.against is not None else ""
    name = weir.partition(" under ")[0]
    said = f"\n`{name}`; {options.rounds} rounds of {options.seconds:g} s; load average meanwhile: {loads}.\n"
    made = beside.table(shown, weir, earlier) + said
    beside.README.write_text(beside.put(beside.README.read_text(), made))


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # otherwise the started processes would stay
    shapes = {name: SHAPES[name] for name in options.shapes.split(",")}
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir="/tmp") as folder, ExitStack() as stack:
        if options.against is not None:
            options.against = checked_out(options.against, Path(folder))
        bench = Bench(Path(folder), options, stack, tls=options.tls)
        routers: Routers = {"direct": None}
        routers |= bench.start_all()
        weir = of_table(routers, options) if options.write else ""
        loads, shown = [os.getloadavg()[0]], list[beside.Shown]()
        for shape in shapes.values():
            bench.prepare(shape)
            rows = closed = bench.compare(shape, routers)
            print(table(f"{shape.title}, {shape.connections} connections without a pause", closed), flush=True)
            for rate in options.rate or half_of_the_slowest(closed):
                title = f"{shape.title}, at {rate:,g} requests/s"
                rows = bench.compare(shape, routers, rate)
                print(table(title, rows, rate), flush=True)
            shown.append((shape.title, measured(closed), measured(rows)))
            loads.append(os.getloadavg()[0])
        loads_text = ", ".join(f"{load:.1f}" for load in loads)
        print(
            f"Times in ms. {options.rounds} rounds of {options.seconds:g} s each; load average meanwhile: {loads_text}."
        )
        if options.write:
            write(shown, weir, options, loads_text)


def measured(rows: Rows) -> dict[str, list[Result]]:
    return {name: rounds for name, rounds in rows.items() if not isinstance(rounds, str)}


if __name__ == "__main__":
    main()
