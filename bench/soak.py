"""Checks that the router's memory stays constant: half of its capacity for some time, memory and CPU in a table.

    .venv/bin/python -m bench.soak [--minutes 30] [--every 60] [--shape burst80]

Engines and clients are those of bench/router.py, the router is Weir with all features and its Redis. The stores of past
requests have limits (docs/router.md, Memory), and a router below them grows legitimately: so 100,000 sessions come
first, the limit of sessions. Half load is a client process that runs half of each second. The first tenth of the time
is warm-up; after it the resident memory may differ by 5 % from its mean. Exit status 1 when it differs more, or when a
request failed.
"""

import argparse
import re
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from bench.peers import Running, cpu_s, memory_mb, tree
from bench.router import SHAPES, Bench, Shape

BURST_S = 0.5  # of load, then as long without
WARM_SHARE = 0.1
TOLERANCE = 0.05
FILLING = Shape("sessions of one request", "unary", 3_072, 512, 1, 16)
FILLING_S = 5.0  # of load between two checks of the number of sessions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=60.0, metavar="S", help="between lines of the table")
    parser.add_argument("--shape", choices=SHAPES, default="burst80")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # child processes would stay otherwise
    options.seconds, options.profile = BURST_S, None
    with tempfile.TemporaryDirectory(prefix="weir-soak-", dir="/tmp") as folder, ExitStack() as stack:
        bench = Bench(Path(folder), options, stack)
        router = bench.start("weir")
        if isinstance(router, str):
            sys.exit(router)
        fill(bench, router)
        rows = soak(bench, router, options)
        print("\nkept entries: " + ", ".join(f"{name} {at:,} of {most:,}" for name, (at, most) in kept(router)))
    sys.exit(judge(rows))


def kept(router: Running) -> list[tuple[str, tuple[int, int]]]:
    """(store, (entries, limit)), from the router's /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{router.port}/metrics") as answer:
        page = answer.read().decode()
    found = {}
    for which in ("", "_limit"):
        lines = re.findall(rf'^weir_router_kept_entries{which}{{.*store="(\w+)"}} (\S+)$', page, re.MULTILINE)
        found[which] = {name: int(float(value)) for name, value in lines}
    return [(name, (entries, found["_limit"][name])) for name, entries in found[""].items()]


def fill(bench: Bench, router: Running) -> None:
    """Sessions of one request each, until the router drops old ones."""
    pids = tree(router.process.pid)
    print(f"before the first request {memory_mb(pids):.1f} MB", flush=True)
    bench.prepare(FILLING)
    entries, most = 0, 1
    while entries < most:
        bench.play(FILLING, [router.port], FILLING_S)
        entries, most = dict(kept(router))["sessions"]
    print(f"with {entries:,} sessions {memory_mb(pids):.1f} MB\n", flush=True)


def soak(bench: Bench, router: Running, options: argparse.Namespace) -> list[tuple[float, float, int]]:
    """Lines of (minutes, MB, failed)."""
    shape, pids = SHAPES[options.shape], tree(router.process.pid)
    bench.prepare(shape)
    began = line_at = time.monotonic()
    rows: list[tuple[float, float, int]] = []
    served, failed, before = 0, 0, cpu_s(pids)
    print("| minute | MB | MB of Redis | requests | failed | CPU ms |\n|---|---|---|---|---|---|")
    while time.monotonic() - began < options.minutes * 60:
        result = bench.play(shape, [router.port], BURST_S)
        served, failed = served + int(result["n"]), failed + int(result["failed"])
        time.sleep(result["seconds"])
        if time.monotonic() - line_at >= options.every:
            minute, memory, cpu = (time.monotonic() - began) / 60, memory_mb(pids), cpu_s(pids)
            helper = memory_mb([router.helper]) if router.helper is not None else 0.0
            each = (cpu - before) * 1000 / max(served, 1)
            print(f"| {minute:.1f} | {memory:.1f} | {helper:.1f} | {served} | {failed} | {each:.3f} |", flush=True)
            rows.append((minute, memory, failed))
            served, failed, before, line_at = 0, 0, cpu, time.monotonic()
    return rows


def judge(rows: list[tuple[float, float, int]]) -> int:
    settled = [memory for minute, memory, _ in rows if minute >= WARM_SHARE * rows[-1][0]] if rows else []
    if len(settled) < 2:
        print("too short to judge")
        return 1
    mean = statistics.mean(settled)
    spread = max(abs(memory - mean) for memory in settled) / mean
    failed = sum(failed for _, _, failed in rows)
    print(f"\nmemory {mean:.1f} MB, at most {spread:.1%} away from it ({TOLERANCE:.0%} allowed); {failed} failed")
    return 1 if spread > TOLERANCE or failed else 0


if __name__ == "__main__":
    main()
