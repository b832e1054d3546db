"""Checks that the router's memory stays constant: half of its capacity for some time, memory and CPU in a table.

    .venv/bin/python -m bench.soak [--minutes 30] [--every 60] [--shape burst80] [--engines 4] [--rate N]
                                   [--unfilled]

Engines and clients are those of bench/router.py, the router is Weir with all features and its Redis. The stores of past
requests have limits (docs/router.md, Memory), and a router below them grows legitimately: so 100,000 sessions come
first, the limit of sessions, then requests of the shape until the approximate index drops as much as it learns and all
spans are of such requests (`--unfilled` leaves those out). Half load is a client process that runs half of each second;
`--rate` offers N requests/s instead. The first tenth of the time is warm-up; after it the resident memory may differ by
5 % from its mean. Exit status 1 when it differs more, or when a request failed. The slope of the router and of Redis is
that of a straight line through the lines of the table, with 95 % confidence.
"""

import argparse
import re
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from math import sqrt
from pathlib import Path
from typing import NamedTuple

from bench.peers import Running, cpu_s, memory_mb, tree
from bench.router import ENGINES, SHAPES, Arrivals, Bench, Shape
from controlplane.traffic.deliveries.judge.statistics import student

BURST_S = 0.5  # seconds of load, then as long without
STEADY_S = 5.0  # seconds of load per run at a rate
WARM_SHARE = 0.1
TOLERANCE = 0.05
FEWEST = 4  # fewest lines of the table
CONFIDENCE = 0.975  # one-sided confidence
FILLING = Shape("sessions of one request", "unary", 3_072, 512, 1, 16)
STEADY_SHARE = 0.005  # most growth of the index within FILLING_S that still counts as full
FILLING_S = 5.0  # seconds of load between two checks of the number of sessions


class Line(NamedTuple):
    minute: float
    memory: float  # MB of the router
    redis: float  # MB of Redis
    failed: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=60.0, metavar="S", help="between lines of the table")
    parser.add_argument("--shape", choices=SHAPES, default="burst80")
    parser.add_argument("--engines", type=int, default=ENGINES)
    parser.add_argument("--rate", type=float, metavar="N", help="requests/s, instead of half load")
    parser.add_argument("--unfilled", action="store_true", help="let the index fill while the time runs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # otherwise child processes would stay
    options.seconds, options.profile, options.spans = BURST_S, None, []
    with tempfile.TemporaryDirectory(prefix="weir-soak-", dir="/tmp") as folder, ExitStack() as stack:
        bench = Bench(Path(folder), options, stack, options.engines)
        router = bench.start("weir")
        if isinstance(router, str):
            sys.exit(router)
        fill(bench, router)
        if not options.unfilled:
            fill_stores(bench, router, SHAPES[options.shape])
        rows = soak(bench, router, options)
        print("\nkept entries: " + ", ".join(f"{name} {at:,} of {most:,}" for name, (at, most) in kept(router)))
    sys.exit(judge(rows))


def kept(router: Running) -> list[tuple[str, tuple[int, int]]]:
    """Return (store, (entries, limit)) from the router's /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{router.port}/metrics") as answer:
        page = answer.read().decode()
    found = {}
    for which in ("", "_limit"):
        lines = re.findall(rf'^weir_router_kept_entries{which}{{.*store="(\w+)"}} (\S+)$', page, re.MULTILINE)
        found[which] = {name: int(float(value)) for name, value in lines}
    return [(name, (entries, found["_limit"][name])) for name, entries in found[""].items()]


def fill(bench: Bench, router: Running) -> None:
    """Send sessions of one request each, until the router drops old ones."""
    pids = tree(router.process.pid)
    print(f"before the first request {memory_mb(pids):.1f} MB", flush=True)
    bench.prepare(FILLING)
    entries, most = 0, 1
    while entries < most:
        bench.play(FILLING, [router.port], FILLING_S)
        entries, most = dict(kept(router))["sessions"]
    print(f"with {entries:,} sessions {memory_mb(pids):.1f} MB\n", flush=True)


def fill_stores(bench: Bench, router: Running, shape: Shape) -> None:
    """Send requests of the shape without a pause, until the approximate index drops as much as it learns and all its
    spans come from these requests: spans of earlier sessions are smaller.
    """
    pids = tree(router.process.pid)
    bench.prepare(shape)
    before, after, played, most = 0, 1, 0, 1
    while after > before * (1 + STEADY_SHARE) or played < most:
        played += int(bench.play(shape, [router.port], FILLING_S)["n"])
        stores = dict(kept(router))
        before, after = after, stores["chunks"][0]
        most = stores["spans"][1]
    print(f"with {after:,} chunks and {stores['spans'][0]:,} spans {memory_mb(pids):.1f} MB\n", flush=True)


def soak(bench: Bench, router: Running, options: argparse.Namespace) -> list[Line]:
    shape, pids = SHAPES[options.shape], tree(router.process.pid)
    bench.prepare(shape)
    began = line_at = time.monotonic()
    rows: list[Line] = []
    served, failed, before = 0, 0, cpu_s(pids)
    print("| minute | MB | chunks | stretches | spans | MB of Redis | requests | failed | CPU ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    while time.monotonic() - began < options.minutes * 60:
        if options.rate:
            result = bench.play(shape, [router.port], STEADY_S, Arrivals(options.rate, len(rows)))
        else:
            result = bench.play(shape, [router.port], BURST_S)
            time.sleep(result["seconds"])
        served, failed = served + int(result["n"]), failed + int(result["failed"])
        if time.monotonic() - line_at >= options.every:
            minute, memory, cpu = (time.monotonic() - began) / 60, memory_mb(pids), cpu_s(pids)
            helper = memory_mb([router.helper]) if router.helper is not None else 0.0
            each = (cpu - before) * 1000 / max(served, 1)
            stores = dict(kept(router))
            fill = " | ".join(f"{stores[name][0]:,}" for name in ("chunks", "stretches", "spans"))
            print(
                f"| {minute:.1f} | {memory:.1f} | {fill} | {helper:.1f} | {served} | {failed} | {each:.3f} |",
                flush=True,
            )
            rows.append(Line(minute, memory, helper, failed))
            served, failed, before, line_at = 0, 0, cpu, time.monotonic()
    return rows


def judge(rows: list[Line]) -> int:
    settled = [row for row in rows if row.minute >= WARM_SHARE * rows[-1].minute]
    if len(settled) < FEWEST:
        print("too short to judge")
        return 1
    mean = statistics.mean(row.memory for row in settled)
    spread = max(abs(row.memory - mean) for row in settled) / mean
    failed = sum(row.failed for row in rows)
    print(f"\nmemory {mean:.1f} MB, at most {spread:.1%} away from it ({TOLERANCE:.0%} allowed); {failed} failed")
    minutes = [row.minute for row in settled]
    for name, values in (("router", [row.memory for row in settled]), ("Redis", [row.redis for row in settled])):
        slope, half = slope_of(minutes, values)
        print(f"{name}: {60 * slope:+.1f} MB an hour, 95 % within ± {60 * half:.1f}, of {len(values)} lines")
    return 1 if spread > TOLERANCE or failed else 0


def slope_of(minutes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the least-squares line per minute, and half of its 95 % interval; the lines count as
    independent."""
    line = statistics.linear_regression(minutes, values)
    off = sum(
        (value - line.intercept - line.slope * minute) ** 2 for minute, value in zip(minutes, values, strict=True)
    )
    mean, freedom = statistics.mean(minutes), len(minutes) - 2
    error = sqrt(off / freedom / sum((minute - mean) ** 2 for minute in minutes))
    return line.slope, error * student.quantile(CONFIDENCE, freedom)


if __name__ == "__main__":
    main()
