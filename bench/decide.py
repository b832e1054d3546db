"""The cost of a decision: `python -m bench.decide [--rounds 2000] [--strategy NAME …] [--instances N …] [--changed N]`.

For pools of 8, 100 and 1000 instances under load and a prompt of 20k tokens (80 KB, 312 chunks), of which half of the
pool holds a system prompt and one instance a session's history. In µs of CPU, as the router does it, with one instance
changed before each decision, or as many as `--changed` says (a second's samples change all that are busy):

    hash              the prompt's chunks, when nothing of it was hashed before
    hash again        when all of it was, as most of a growing session's
    look up           in the prefix index
    decide            of a request that has been looked up
    look up + decide  with what the session and the instances hold of the prompt, in tokens: what the goals are for
    heavy             decide, when nothing of the prompt is cached; offloaded where the strategy can
    + candidates      all of them written out, as a receipt does
    take up           what the chosen instance will hold, and where the session is

With `--ranks 4` every four candidates are ranks of one instance that step together, and one of them has begun or ended
a decode before each decision; with `--unequal` every other instance is half as fast; with `--adapter` every request
asks for an adapter that half of the pool holds; with `--pull` instances may pull KV from each other, and nothing is
offloaded.

Before that the index's memory. After it whether look-up and decision together keep to the goals, ≤ 100 µs (median) at
100 instances and ≤ 1000 µs at 1000, for every strategy.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from router.contract.redis.published import DataParallel, FleetValue, PublishedInstance
from router.contract.redis.sample import InstanceSample
from router.policy.schema import document
from router.policy.strategies import STRATEGIES
from router.policy.types import Decision, ParsedPolicy, Rates, RoutingRequest
from router.pool.endpoint import Endpoint
from router.pool.pool import Pool
from router.prefix.approximate import PrefixIndex
from router.prefix.chain import CHUNK_BYTES, chunk_hashes
from router.request.call import Call
from router.request.request import ProxiedRequest
from router.serving.prompt.sessions import Sessions
from router.tokenize import Prompt

SIZES = (8, 100, 1_000)
GOALS_US = {100: 100.0, 1_000: 1_000.0}
RATES = Rates(9_000.0, 131_072.0, 3e9, 0.01)
PROMPT_TOKENS = 20_000
BYTES_PER_TOKEN = 4
SESSIONS = 64
ADAPTER = "support-bot@v3"
JUDGED = "look up + decide"
PULL = 12.4  # GB/s


class Taken(NamedTuple):
    """Times in µs. The first one is measured while nothing else evicts the processor's caches."""

    p10: float
    median: float
    p99: float


class Bench:
    """A pool under load, and requests of sessions, every other one of which is bound to its instance."""

    def __init__(
        self, size: int, seed: int, ranks: int = 1, changed: int = 1, *, unequal: bool = False, adapter: bool = False
    ) -> None:
        self.changed = changed
        self.rng = random.Random(seed)
        self.sessions = Sessions()
        self.pool = Pool("demo")
        self.pool.rates = RATES
        instances = tuple(_instance(number, ranks) for number in range(size // ranks))
        self.pool.take_fleet(FleetValue(pool="bench", model="bench", at=1.0, instances=instances))
        self.endpoints = list(self.pool.endpoints.values())
        for endpoint in self.endpoints:
            self.load(endpoint)
        for endpoint in self.endpoints[1::2] if unequal else ():
            endpoint.take_pace(0.5)
        self.adapter = ADAPTER if adapter else ""
        for endpoint in self.endpoints[: size // 2] if adapter else ():
            endpoint.adapters = frozenset((ADAPTER,))
        system = self.rng.randbytes(8_192)
        for endpoint in self.endpoints[: size // 2]:
            self.pool.index.insert(endpoint.id, 1, chunk_hashes(system))
        rest = PROMPT_TOKENS * BYTES_PER_TOKEN - len(system)
        self.calls = [self.call(number, system + self.rng.randbytes(rest)) for number in range(SESSIONS)]

    def load(self, endpoint: Endpoint) -> None:
        below = self.rng.randrange
        sample = InstanceSample(
            id=endpoint.id, epoch=1, at=time.time(), kv_usage=self.rng.random() * 0.9, waiting=below(9)
        )
        endpoint.take_sample(sample, time.time())
        endpoint.take_others((below(40), below(60_000), below(30)))

    def call(self, number: int, prompt: bytes) -> Call:
        call = Call(f"req-{number}", "/v1/completions", time.time(), 0.0, pool=self.pool)
        read = Prompt("bench", prompt, None, stream=True, usage_asked=True)
        chunks = self.pool.chains.hashes(prompt)
        call.request = ProxiedRequest(b"", b"", b"", read, chunks, turn=number)
        call.prediction.prompt_tokens = PROMPT_TOKENS
        call.session = call.session_key = f"s{number}"
        home = self.rng.choice(self.endpoints)
        self.pool.index.insert(home.id, 1, chunks[: len(chunks) * 9 // 10])
        if number % 2:
            self.pool.affinity.bind(call.session, home.id, call.at, 1_800)
            self.pool.affinity.answered(call.session, PROMPT_TOKENS * 9 // 10)
        return call

    def change(self) -> None:
        for endpoint in self.rng.sample(self.endpoints, min(self.changed, len(self.endpoints))):
            endpoint.kv_usage = self.rng.random() * 0.9
            endpoint.decodes_changed()

    def decide(self, request: RoutingRequest) -> Decision:
        homes = self.pool.homes(self.adapter) if self.adapter else None
        return self.pool.decide(request, {}, 0.0, None, homes)

    def decided(self, number: int) -> Decision:
        return self.decide(self.sessions.request(self.calls[number % SESSIONS]))

    def taken_up(self, number: int) -> None:
        self.sessions.sent(self.calls[number % SESSIONS], self.endpoints[number // SESSIONS % len(self.endpoints)])


def _instance(number: int, ranks: int) -> PublishedInstance:
    return PublishedInstance(
        id=f"demo-{number}",
        epoch=1,
        url="http://127.0.0.1:1",
        state="ready",
        routable=True,
        block_size=16,
        kv_blocks=25_000,
        connector="nixl",
        dp=DataParallel(ranks, together=f"demo-{number}" if ranks > 1 else ""),
    )


def measure(call: Callable[[int], object], rounds: int, before: Callable[[], None] = lambda: None) -> Taken:
    """Measure CPU time, without `before`, with the garbage collector off."""
    call(0)
    times = []
    gc.disable()
    for number in range(rounds):
        before()
        began = time.thread_time_ns()
        call(number)
        times.append(time.thread_time_ns() - began)
    gc.enable()
    times.sort()
    return Taken(times[rounds // 10] / 1e3, times[rounds // 2] / 1e3, times[rounds * 99 // 100] / 1e3)


Timed = dict[str, Callable[[int], object]]


def of_every_strategy(bench: Bench) -> Timed:
    calls, index, chains = bench.calls, bench.pool.index, bench.pool.chains
    return {
        "hash": lambda number: chunk_hashes(calls[number % SESSIONS].request.prompt.rendered),
        "hash again": lambda number: chains.hashes(calls[number % SESSIONS].request.prompt.rendered),
        "look up": lambda number: index.match(calls[number % SESSIONS].request.chunks),
    }


def of_the_strategy(bench: Bench, policy: ParsedPolicy) -> Timed:
    bench.pool.policy = policy
    requests = [bench.sessions.request(call) for call in bench.calls]
    heavy = replace(requests[0], bound_to=None, held={})
    return {
        "decide": lambda number: bench.decide(requests[number % SESSIONS]),
        JUDGED: bench.decided,
        "heavy": lambda number: bench.decide(heavy),
        "+ candidates": lambda number: list(bench.decided(number).candidates),
    }


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


def index_memory(entries: int) -> None:
    """Print the resident memory per (instance, chunk) of an index of eight instances that share nothing."""
    for length in (312, 16, 1):
        rng = random.Random(1)
        gc.collect()
        before = resident_bytes()
        index = PrefixIndex(max_chunks=entries * 2, instance_chunks=entries * 2)
        for number in range(min(entries // length, 200_000)):
            index.insert(f"demo-{number % 8}", 1, [rng.getrandbits(64) for _ in range(length)])
        size = (resident_bytes() - before) / len(index)
        print(f"index, prompts of {length} chunks of {CHUNK_BYTES} bytes: {size:.0f} bytes per chunk and instance")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def verdict(medians: dict[tuple[str, int], float]) -> None:
    """Compare look-up and decision with the goals."""
    for size, goal in GOALS_US.items():
        over = [
            f"{strategy} {median:.0f} µs"
            for (strategy, its), median in medians.items()
            if its == size and median > goal
        ]
        took = [median for (_, its), median in medians.items() if its == size]
        if not took:
            continue
        told = f"over: {', '.join(over)}" if over else "kept by every strategy"
        print(f"goal {goal:.0f} µs at {size} instances: {told}; the slowest takes {max(took):.0f} µs")


def timed_at(size: int, options: argparse.Namespace) -> Iterator[tuple[str, str, Taken, int]]:
    """Yield (strategy, part, times, rounds) of every part."""
    bench = Bench(size, options.seed, options.ranks, options.changed, unequal=options.unequal, adapter=options.adapter)
    rounds = max(options.rounds * 8 // (8 + size // 50), 100)
    for part, call in of_every_strategy(bench).items():
        yield "any", part, measure(call, rounds), rounds
    for strategy in options.strategy:
        flow = {"heavy": "colocated", "pull_gb_per_s": PULL} if options.pull else {"heavy": "offload"}
        policy = document.parse({"strategy": {"name": strategy}, "flow": flow})
        for part, call in of_the_strategy(bench, policy).items():
            yield strategy, part, measure(call, rounds, bench.change), rounds
    yield "any", "take up", measure(bench.taken_up, rounds), rounds


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a decision")
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--changed", type=int, default=1)
    parser.add_argument("--unequal", action="store_true")
    parser.add_argument("--adapter", action="store_true")
    parser.add_argument("--pull", action="store_true")
    parser.add_argument("--strategy", nargs="+", choices=list(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--instances", nargs="+", type=int, default=list(SIZES))
    options = parser.parse_args()
    index_memory(1_000_000)
    rows = [["strategy", "instances", "part", "p10 µs", "median µs", "p99 µs", "n"]]
    medians = {}
    for size in options.instances:
        for strategy, part, taken, rounds in timed_at(size, options):
            rows.append([strategy, str(size), part, *(f"{one:.1f}" for one in taken), str(rounds)])
            if part == JUDGED:
                medians[strategy, size] = taken.median
    print_table(rows)
    verdict(medians)


if __name__ == "__main__":
    main()
