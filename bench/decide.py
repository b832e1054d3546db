"""What a decision costs: `python -m bench.decide [--rounds 2000] [--route NAME …] [--instances N …]`.

For pools of 8, 100 and 1000 instances and a prompt of 20k tokens (80 KB, 312 chunks), of which half of the pool holds a
system prompt and one instance a session's history: hashing the prompt, looking it up and deciding, each by itself and
together, in µs of CPU, for every route; then with the candidates written out, as a receipt does. "heavy" decides a
prompt of which nothing is cached, offloaded where the route can. Before that the index's memory. After it whether
look-up and decision together keep to the goals: ≤ 100 µs (median) at 100 instances and ≤ 1000 µs at 1000.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from router.policy import document
from router.policy.decide import decide
from router.policy.routes import ROUTES
from router.policy.types import Instance, Policy, Rates, Request
from router.prefix.approximate import PrefixIndex
from router.prefix.chain import CHUNK_BYTES, chunk_hashes

SIZES = (8, 100, 1_000)
GOALS_US = {100: 100.0, 1_000: 1_000.0}
RATES = Rates(9_000.0, 131_072.0, 3e9, 0.01, 0.01)
PROMPT_TOKENS = 20_000
BYTES_PER_TOKEN = 4
SESSIONS = 64


class Fleet:
    """A pool under load, its prefix index and the prompts of some sessions that live on it."""

    def __init__(self, size: int, seed: int) -> None:
        rng = random.Random(seed)
        self.rng = rng
        self.names = [f"demo-{number}" for number in range(size)]
        self.load = {
            name: (rng.randrange(40), rng.randrange(30), rng.randrange(60_000), rng.random() * 0.9, rng.randrange(9))
            for name in self.names
        }
        self.index = PrefixIndex()
        system = rng.randbytes(8_192)
        self.prompts = [system + rng.randbytes(PROMPT_TOKENS * BYTES_PER_TOKEN - len(system)) for _ in range(SESSIONS)]
        self.homes = [rng.choice(self.names) for _ in self.prompts]
        for name in self.names[: size // 2]:
            self.index.insert(name, 1, chunk_hashes(system))
        for prompt, home in zip(self.prompts, self.homes, strict=True):
            self.index.insert(home, 1, chunk_hashes(prompt[: len(prompt) * 9 // 10]))

    def instances(self) -> list[Instance]:
        """The router keeps these between requests and replaces the one whose load changed."""
        return [
            Instance(
                name,
                running=running,
                decodes=decodes,
                prefill_tokens=prefill,
                kv_usage=kv_usage,
                kv_tokens=400_000,
                waiting=waiting,
                connector="nixl",
            )
            for name, (running, decodes, prefill, kv_usage, waiting) in self.load.items()
        ]


def measure(call: Callable[[int], object], rounds: int) -> tuple[float, float]:
    """Median and p99 of the CPU time in µs, whatever else the machine does; the garbage collector is off."""
    call(0)
    times = []
    gc.disable()
    for number in range(rounds):
        began = time.thread_time_ns()
        call(number)
        times.append(time.thread_time_ns() - began)
    gc.enable()
    times.sort()
    return times[rounds // 2] / 1e3, times[rounds * 99 // 100] / 1e3


def parts(fleet: Fleet, policy: Policy, rounds: int) -> dict[str, tuple[float, float]]:
    hashes = [chunk_hashes(prompt) for prompt in fleet.prompts]
    instances = fleet.instances()

    def request(number: int) -> Request:
        which = number % SESSIONS
        found = fleet.index.match(hashes[which])
        return Request(
            PROMPT_TOKENS,
            session=f"s{which}",
            bound_to=fleet.homes[which] if which % 2 else None,
            held={name: chunks * CHUNK_BYTES // BYTES_PER_TOKEN for name, chunks in found.items()},
            history_tokens=PROMPT_TOKENS * 9 // 10,
            rates=RATES,
            prefix_key=which,
            turn=number,
        )

    requests = [request(number) for number in range(SESSIONS)]
    heavy = Request(PROMPT_TOKENS, held={}, rates=RATES)
    calls: dict[str, Callable[[int], object]] = {
        "hash": lambda number: chunk_hashes(fleet.prompts[number % SESSIONS]),
        "match": lambda number: fleet.index.match(hashes[number % SESSIONS]),
        "decide": lambda number: decide(requests[number % SESSIONS], instances, policy, 0.5),
        "match + decide": lambda number: decide(request(number), instances, policy, 0.5),
        "heavy": lambda number: decide(heavy, instances, policy, 0.5),
        "… + all candidates": lambda number: list(decide(request(number), instances, policy, 0.5).candidates),
    }
    return {part: measure(call, rounds) for part, call in calls.items()}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


def bytes_per_entry(entries: int) -> float:
    """Resident memory per (instance, chunk) of an index of eight instances that share nothing."""
    rng = random.Random(1)
    gc.collect()
    before = resident_bytes()
    index = PrefixIndex(max_chunks=entries * 2, instance_chunks=entries * 2)
    for number in range(entries // 312):
        index.insert(f"demo-{number % 8}", 1, [rng.getrandbits(64) for _ in range(312)])
    return (resident_bytes() - before) / len(index)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def verdict(medians: dict[tuple[str, int], float]) -> None:
    """Look-up and decision against the goals."""
    for size, goal in GOALS_US.items():
        over = [f"{route} {median:.0f} µs" for (route, its), median in medians.items() if its == size and median > goal]
        slowest = max((median for (_, its), median in medians.items() if its == size), default=0.0)
        told = f"over: {', '.join(over)}" if over else "kept by every route"
        print(f"goal {goal:.0f} µs at {size} instances: {told}; the slowest takes {slowest:.0f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a decision")
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--route", nargs="+", choices=list(ROUTES), default=list(ROUTES))
    parser.add_argument("--instances", nargs="+", type=int, default=list(SIZES))
    options = parser.parse_args()
    print(f"bytes per entry of the index, 1M entries: {bytes_per_entry(1_000_000):.0f}")
    rows = [["route", "instances", "part", "median µs", "p99 µs", "n"]]
    medians = {}
    for size in options.instances:
        fleet = Fleet(size, options.seed)
        rounds = max(options.rounds * 8 // (8 + size // 50), 100)
        for route in options.route:
            policy = document.parse({"route": {"name": route}, "flow": {"heavy": "offload"}})
            for part, (median, p99) in parts(fleet, policy, rounds).items():
                if part == "match + decide":
                    medians[route, size] = median
                rows.append([route, str(size), part, f"{median:.1f}", f"{p99:.1f}", str(rounds)])
    print_table(rows)
    verdict(medians)


if __name__ == "__main__":
    main()
