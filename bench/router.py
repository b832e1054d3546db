"""What the router costs: CPU per request, throughput, latency, against a direct connection to the same engines.

    .venv/bin/python bench/router.py [--seconds 5] [--only unary,burst,burst80,paced] [--direct] [--profile FILE]

The engines are a small C server (bench/upstream/, built here with gcc) so that nothing of theirs weighs on the figures.
The router runs as in production: default policy, prefix index, sessions, receipts to a real Redis, metrics.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from controlplane import redis_server
from router import wire
from router.policy import document

HERE = Path(__file__).resolve().parent
ENGINES = 4
SESSIONS = 64
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Scenario:
    name: str
    kind: str  # what the engine answers: unary, burst, paced
    body: int  # bytes
    connections: int


SCENARIOS = (
    Scenario("unary", "unary", 4_000, 16),
    Scenario("burst", "burst", 4_000, 16),
    Scenario("burst80", "burst", 80_000, 16),
    Scenario("paced", "paced", 4_000, 64),
)


def bodies(scenario: Scenario) -> list[bytes]:
    """Conversations of many sessions: half of each prompt is shared with all, the other half is the session's own."""
    draw = random.Random(1)
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
    text = " ".join(draw.choices(words, k=scenario.body // 4))
    made = []
    for session in range(SESSIONS):
        own = f"session {session} " + " ".join(draw.choices(words, k=scenario.body // 4))
        prompt = (text[: scenario.body // 2] + own)[: scenario.body]
        value = {"model": "bench", "user": f"user-{session}", "prompt": prompt, "max_tokens": 64}
        made.append(json.dumps({**value, **({"stream": True} if scenario.kind != "unary" else {})}).encode())
    return made


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it has its answer."""

    def __init__(self, requests: list[bytes], first: int, stops_at: float, streamed: bool) -> None:
        self.requests, self.turn, self.stops_at, self.streamed = requests, first, stops_at, streamed
        self.ttfb: list[float] = []
        self.e2e: list[float] = []
        self.failed = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.data, self.tail, self.left, self.began = b"", b"", -1, time.perf_counter()
        self.turn += 1
        self.transport.write(self.requests[self.turn % len(self.requests)])

    def data_received(self, data: bytes) -> None:
        if self.left < 0 and not self.tail:
            self.ttfb.append(time.perf_counter() - self.began)
            self.failed += not data.startswith(b"HTTP/1.1 200")
        if self.streamed:
            self.tail = (self.tail + data)[-5:]
            over = self.tail == b"0\r\n\r\n"
        else:
            over = self.whole(data)
        if over:
            self.e2e.append(time.perf_counter() - self.began)
            if time.perf_counter() < self.stops_at:
                self.ask()
            else:
                self.transport.close()
                self.done.set_result(None)

    def whole(self, data: bytes) -> bool:
        if self.left < 0:
            self.data += data
            head, found, rest = self.data.partition(b"\r\n\r\n")
            if not found:
                return False
            self.left = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]) - len(rest)
        else:
            self.left -= len(data)
        return self.left <= 0

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.failed += 1
            self.done.set_result(None)


def request(scenario: Scenario, body: bytes) -> bytes:
    return (
        b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer x\r\nuser-agent: bench\r\nx-bench: %b\r\ncontent-length: %d\r\n\r\n%b"
        % (scenario.kind.encode(), len(body), body)
    )


async def load(ports: list[int], scenario: Scenario, seconds: float) -> list[Client]:
    requests = [request(scenario, body) for body in bodies(scenario)]
    loop, stops_at = asyncio.get_running_loop(), time.perf_counter() + seconds
    clients = []
    for i in range(scenario.connections):
        made = Client(requests, i * 7, stops_at, scenario.kind != "unary")
        clients.append(made)
        await loop.create_connection(lambda made=made: made, "127.0.0.1", ports[i % len(ports)])
    await asyncio.wait_for(asyncio.gather(*(client.done for client in clients)), seconds + 20)
    return clients


def cpu_s(pid: int) -> tuple[float, float]:
    """(user, system) seconds of a process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) / TICKS, int(words[12]) / TICKS


def percentile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1] * 1000


def measure(ports: list[int], scenario: Scenario, seconds: float, pid: int | None) -> dict[str, float]:
    uvloop.run(load(ports, scenario, min(1.0, seconds / 3)))  # warm: connections, caches, the index
    before, began = cpu_s(pid) if pid else (0.0, 0.0), time.perf_counter()
    clients = uvloop.run(load(ports, scenario, seconds))
    elapsed = time.perf_counter() - began
    after = cpu_s(pid) if pid else (0.0, 0.0)
    ttfb = [value for client in clients for value in client.ttfb]
    e2e = [value for client in clients for value in client.e2e]
    user, system = ((a - b) * 1000 / len(e2e) for a, b in zip(after, before, strict=True))
    return {
        "requests": len(e2e),
        "failed": sum(client.failed for client in clients),
        "per_s": len(e2e) / elapsed,
        "cpu_ms": user + system,
        "user_ms": user,
        "ttfb_p50": percentile(ttfb, 0.5),
        "ttfb_p99": percentile(ttfb, 0.99),
        "e2e_p50": percentile(e2e, 0.5),
        "e2e_p99": percentile(e2e, 0.99),
    }


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    while True:
        first = random.randint(20_000, 50_000)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


@contextmanager
def process(argv: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(argv, **options)
    try:
        yield running
    finally:
        running.terminate()
        running.wait(20)


def build(folder: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("bench/router.py needs a C compiler (apt-get install gcc)")
    binary = folder / "upstream"
    subprocess.run([compiler, "-O2", "-o", binary, HERE / "upstream" / "upstream.c"], check=True)
    return binary


def publish(client: redis.Redis, ports: list[int]) -> None:
    made = document.default()
    policy = {"pool": "bench", "policy": "default", "version": 1, "document": made, "sha256": document.sha256(made)}
    common = {"epoch": 1, "state": "ready", "routable": True, "block_size": 16, "kv_blocks": 28_000}
    instances = [{"id": f"bench-{i}", "url": f"http://127.0.0.1:{port}", **common} for i, port in enumerate(ports)]
    fleet = {"pool": "bench", "model": "bench", "at": time.time(), "instances": instances}
    client.set(wire.policy_key("bench"), wire.encode(policy))
    client.set(wire.fleet_key("bench"), wire.encode(fleet))
    client.sadd(wire.POOLS, "bench")


def wait_until_ready(port: int) -> None:
    for _ in range(200):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1) as answer:
                if json.load(answer)["pools"].get("bench", {}).get("ready") == ENGINES:
                    return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit("the router did not become ready")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default=",".join(scenario.name for scenario in SCENARIOS))
    parser.add_argument("--direct", action="store_true", help="also without the router")
    parser.add_argument("--profile", metavar="FILE", help="run the router under cProfile and save its statistics")
    options = parser.parse_args()
    chosen = [scenario for scenario in SCENARIOS if scenario.name in options.only.split(",")]
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir="/tmp") as folder, ExitStack() as stack:
        root = Path(folder)
        first = free_ports(ENGINES + 1)
        ports, port = list(range(first, first + ENGINES)), first + ENGINES
        url = f"unix://{root / 'redis.sock'}"
        arguments = redis_server.arguments(redis_server.find_server(), root / "redis.sock")
        stack.enter_context(process(arguments, stdout=subprocess.DEVNULL))
        redis_server.wait_until_ready(url)
        stack.enter_context(process([str(build(root)), str(first), str(ENGINES)]))
        with redis.Redis.from_url(url) as client:
            publish(client, ports)
        python = [sys.executable, *(["-m", "cProfile", "-o", options.profile] if options.profile else [])]
        router = [*python, "-m", "router", "--redis", url, "--port", str(port), "--log-level", "warning"]
        running = stack.enter_context(process(router, cwd=HERE.parent))
        wait_until_ready(port)
        show(chosen, ports, port, running.pid, options)


def show(chosen: list[Scenario], ports: list[int], port: int, pid: int, options: argparse.Namespace) -> None:
    columns = ("requests", "failed", "per_s", "cpu_ms", "user_ms", "ttfb_p50", "ttfb_p99", "e2e_p50", "e2e_p99")
    print(f"{'scenario':18}" + "".join(f"{column:>10}" for column in columns) + "   (ms)")
    for scenario in chosen:
        targets: list[tuple[str, list[int], int | None]] = [("weir", [port], pid)]
        if options.direct:
            targets.insert(0, ("direct", ports, None))
        for name, where, whose in targets:
            figures = measure(where, scenario, options.seconds, whose)
            shown = "".join(f"{figures[column]:>10.3f}" for column in columns)
            print(f"{scenario.name + ' ' + name:18}{shown}", flush=True)


if __name__ == "__main__":
    main()
