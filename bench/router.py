"""What the router costs beside others: CPU per request, throughput, latency, memory, in one run on the same cores.

    .venv/bin/python -m bench.router [--seconds 4] [--rounds 3] [--shapes unary,burst,burst80,paced]
                                     [--routers weir,weir-alone,sglang-router,vllm-router,litellm] [--profile FILE]

Engines (bench/upstream/) and clients (bench/load/) are small C programs, built here with gcc. The router under test has
a core of its own (so far as the machine is quiet), engines, clients and Redis have another. All routers run from the
start to the end and are measured in turn, round by round, so that what else happens on the machine falls on all alike.
CPU is that of a router's whole process tree; "+ Redis" is what Weir's Redis used besides. Prints Markdown.
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
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.peers import PEERS, Running, Setting, Unavailable, cpu_s, memory_mb, process, tree

HERE = Path(__file__).resolve().parent
ENGINES = 4
SESSIONS = 64
WARM_S = 0.5
PORTS_EACH = 2  # of a router: its own and that of its metrics


@dataclass(frozen=True)
class Shape:
    title: str
    answer: str  # what the engines give: unary, burst, paced
    base: int  # bytes of a session's first body
    step: int  # by which its next ones are longer
    turns: int  # of a session; then it begins anew
    connections: int


SHAPES = {
    "unary": Shape("unary, 4 KB", "unary", 3_072, 512, 5, 16),
    "burst": Shape("64 chunks back to back, 4 KB", "burst", 3_072, 512, 5, 16),
    "burst80": Shape("64 chunks back to back, 80 KB", "burst", 56_320, 4_096, 13, 16),
    "paced": Shape("64 chunks 5 ms apart, 4 KB, 64 connections", "paced", 3_072, 512, 5, 64),
}
COLUMNS = ("cpu_ms", "redis_ms", "per_s", "ttfb_p50", "ttfb_p99", "e2e_p50", "e2e_p99", "mb")


def bodies(shape: Shape, file: Path) -> None:
    """Chats of many sessions: the first quarter of the first body is shared by all, the rest is the session's own."""
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
    """The first of so many ports in a row that are free now."""
    while True:
        first = random.randint(20_000, 30_000)
        try:
            for port in range(first, first + number):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


def build(name: str, folder: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("bench/router.py needs a C compiler (apt-get install gcc)")
    binary = folder / name
    subprocess.run([compiler, "-O2", "-o", binary, HERE / name / f"{name}.c"], check=True)
    return binary


class Bench:
    def __init__(self, folder: Path, options: argparse.Namespace, stack: ExitStack) -> None:
        self.folder, self.options, self.stack = folder, options, stack
        cores = sorted(os.sched_getaffinity(0))
        self.pin, self.pin_rest = (["taskset", "-c", str(core)] for core in (cores[0], cores[-1]))
        first = free_ports(ENGINES + PORTS_EACH * len(PEERS))
        self.engines = list(range(first, first + ENGINES))
        self.ports = count(first + ENGINES, PORTS_EACH)
        self.generation = count(1, 10_000)
        self.load = build("load", folder)
        stack.enter_context(process([*self.pin_rest, build("upstream", folder), first, ENGINES]))

    def start(self, name: str) -> Running | str:
        """The router, or why there is none."""
        folder = self.folder / name
        folder.mkdir()
        profile = self.options.profile
        setting = Setting(folder, self.engines, next(self.ports), self.pin, self.pin_rest, profile)
        try:
            return self.stack.enter_context(PEERS[name](setting))  # type: ignore[arg-type]
        except Unavailable as why:
            return str(why)

    def prepare(self, shape: Shape) -> None:
        bodies(shape, self.folder / "bodies")
        for port in self.engines:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/answer/{shape.answer}").read()

    def play(self, shape: Shape, ports: Iterable[int], seconds: float) -> dict[str, float]:
        numbers = (SESSIONS, shape.base, shape.step, shape.turns, next(self.generation), shape.connections, seconds)
        argv = [*self.pin_rest, self.load, self.folder / "bodies", *numbers, *ports]
        run = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, check=True)
        return json.loads(run.stdout)

    def measure(self, shape: Shape, router: Running | None) -> dict[str, float]:
        ports = [router.port] if router is not None else self.engines
        self.play(shape, ports, WARM_S)
        pids = tree(router.process.pid) if router is not None else []
        helper = [router.helper] if router is not None and router.helper is not None else []
        before, helper_before = cpu_s(pids), cpu_s(helper)
        figures = self.play(shape, ports, self.options.seconds)
        each = 1000 / max(figures["n"], 1)
        cpu = {"cpu_ms": (cpu_s(pids) - before) * each, "redis_ms": (cpu_s(helper) - helper_before) * each}
        return {**figures, **cpu, "per_s": figures["n"] / figures["seconds"], "mb": memory_mb(pids)}


def table(shape: Shape, rows: dict[str, list[dict[str, float]] | str]) -> str:
    lines = [
        f"**{shape.title}**",
        "",
        "| | CPU ms (least–most) | + Redis | requests/s | TTFB p50 | p99 | E2E p50 | p99 | MB | n | failed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, rounds in rows.items():
        lines.append(f"| {name} | {rounds} |" if isinstance(rounds, str) else row(name, rounds))
    return "\n".join([*lines, ""])


def row(name: str, rounds: list[dict[str, float]]) -> str:
    """Medians of the rounds; the sum of requests and failures."""
    middle = {column: statistics.median(one[column] for one in rounds) for column in COLUMNS}
    costs = [one["cpu_ms"] for one in rounds]
    direct = name == "direct"
    cells = [
        name,
        "–" if direct else f"{middle['cpu_ms']:.3f} ({min(costs):.3f}–{max(costs):.3f})",
        f"{middle['redis_ms']:.3f}" if middle["redis_ms"] else "",
        f"{middle['per_s']:,.0f}",
        *(f"{middle[column]:.2f}" for column in ("ttfb_p50", "ttfb_p99", "e2e_p50", "e2e_p99")),
        "" if direct else f"{middle['mb']:.0f}",
        f"{sum(one['n'] for one in rounds):,.0f}",
        f"{sum(one['failed'] for one in rounds):.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--routers", default=",".join(PEERS))
    parser.add_argument("--profile", metavar="FILE", help="run Weir under cProfile and save its statistics")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or what was started would stay
    shapes = {name: SHAPES[name] for name in options.shapes.split(",")}
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir="/tmp") as folder, ExitStack() as stack:
        bench = Bench(Path(folder), options, stack)
        routers: dict[str, Running | str | None] = {"direct": None}
        routers |= {name: bench.start(name) for name in options.routers.split(",")}
        loads = [os.getloadavg()[0]]
        for shape in shapes.values():
            bench.prepare(shape)
            rows: dict[str, list[dict[str, float]] | str] = {}
            for _ in range(options.rounds):
                for name, router in routers.items():
                    if isinstance(router, str):
                        rows[name] = router
                    else:
                        rows.setdefault(name, []).append(bench.measure(shape, router))  # type: ignore[union-attr]
            loads.append(os.getloadavg()[0])
            print(table(shape, rows), flush=True)
        told = ", ".join(f"{load:.1f}" for load in loads)
        print(f"Times in ms. {options.rounds} rounds of {options.seconds:g} s each; load average meanwhile: {told}.")


if __name__ == "__main__":
    main()
