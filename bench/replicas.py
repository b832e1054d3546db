"""Cache hits through several routers behind a balancer, compared with one router.

Replays the first turns of a coding-agent trace's sessions in a closed loop through 1, 2 and 4 routers, chosen round
robin per request by a client-side balancer, with the same number of fresh simulated engines, and sums the cached tokens
that the engines report; with session ids in a header, and with sessions recognised by their prompts. Prompts and KV
are scaled to a quarter. `ideal` is the share with an unlimited cache per session.

    .venv/bin/python bench/replicas.py TRACE.jsonl [--sessions 12] [--turns 20] [--engines 4] [--routers 1,2,4]
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import httpx
import redis

from controlplane.base.process import redis_server
from controlplane.evidence.experiments.replay.prompts import PromptWriter
from controlplane.evidence.traces.formats import coding_agent
from controlplane.evidence.traces.types import TraceRequest
from router.contract.redis import redis_keys
from router.policy.schema import document
from router.tests.values import stored

ROOT = Path(__file__).parent.parent
MODEL = "bench"
POOL = "bench"
ANSWER_TOKENS = 16
SHRINK = 4  # blocks of 64 tokens in the trace become blocks of 16
KV_BLOCKS = 28_000 // SHRINK  # blocks of a Llama-3.1-8B on an H100
TIME_SCALE = 200.0  # time scale of the engines: their load is light, only their caches matter
LONGEST_THINK_S = 0.5  # some sessions pause for hours
LONGEST_S = 120.0
Sessions = list[list[TraceRequest]]


@dataclass
class Outcome:
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0

    @property
    def share(self) -> float:
        return self.cached_tokens / max(1, self.prompt_tokens)


def read_sessions(path: Path, sessions: int, turns: int) -> Sessions:
    """Return the first turns of the first sessions, in order."""
    found: dict[str, list[TraceRequest]] = {}
    with path.open() as lines:
        for request in coding_agent.read(lines, seed=1).requests:
            found.setdefault(request.session, []).append(request)
    long = [asked[:turns] for asked in found.values() if len(asked) >= turns]
    return long[:sessions]


def ideal_share(sessions: Sessions) -> float:
    """Return the share of prompt tokens in blocks that the session has sent before."""
    asked = cached = 0
    for session in sessions:
        known: set[int] = set()
        for request in session:
            blocks = list(request.block_ids())
            cached += request.block_tokens * sum(block in known for block in blocks)
            asked += request.input_tokens
            known.update(blocks)
    return cached / asked


async def replay(sessions: Sessions, urls: list[str], named: bool) -> Outcome:
    outcome, turn, writer = Outcome(), count(), PromptWriter(bytes_per_token=4 / SHRINK)
    began = time.perf_counter()
    async with httpx.AsyncClient(timeout=LONGEST_S) as client:

        async def play(session: list[TraceRequest]) -> None:
            for request in session:
                url = urls[next(turn) % len(urls)]
                await ask(client, url, request, writer.write(request), named, outcome)
                await asyncio.sleep(min(request.think_s / TIME_SCALE, LONGEST_THINK_S))

        await asyncio.gather(*(play(session) for session in sessions))
    outcome.seconds = time.perf_counter() - began
    return outcome


async def ask(
    client: httpx.AsyncClient, url: str, request: TraceRequest, prompt: str, named: bool, outcome: Outcome
) -> None:
    headers = {"x-session-id": request.session} if named else {}
    body = {"model": MODEL, "prompt": prompt, "max_tokens": ANSWER_TOKENS}
    answer = await client.post(f"{url}/v1/completions", json=body, headers=headers)
    outcome.requests += 1
    if answer.status_code != 200:
        outcome.failed += 1
        print(f"{answer.status_code} {answer.text[:200]}", file=sys.stderr)
        return
    usage = answer.json()["usage"]
    outcome.prompt_tokens += usage["prompt_tokens"]
    outcome.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def start(stack: ExitStack, folder: Path, name: str, *arguments: object) -> None:
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    argv = [sys.executable, *map(str, arguments)]
    running = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log, env=os.environ)

    def stop() -> None:
        running.terminate()
        running.wait(20)

    stack.callback(stop)


def start_engines(stack: ExitStack, folder: Path, ports: list[int], time_scale: float = TIME_SCALE) -> None:
    for port in ports:
        flags = ("--port", port, "--model", MODEL, "--time-scale", time_scale, "--kv-blocks", KV_BLOCKS)
        flags += ("--max-model-len", 100_000)
        start(stack, folder, f"engine-{port}", "-m", "fleet.simengine", *flags)
    for port in ports:
        wait(f"http://127.0.0.1:{port}/health", lambda answer: answer.status_code == 200)


def start_routers(stack: ExitStack, folder: Path, redis_url: str, ports: list[int], engines: int) -> None:
    for number, port in enumerate(ports, 1):
        flags = ("--redis", redis_url, "--port", port, "--id", f"router-{number}", "--log-level", "warning")
        start(stack, folder, f"router-{port}", "-m", "router", *flags)

    def serves(answer: httpx.Response) -> bool:
        pools = answer.json()["pools"]
        return POOL in pools and pools[POOL]["ready"] == engines

    for port in ports:
        wait(f"http://127.0.0.1:{port}/healthz", serves)
    time.sleep(1.5)  # time for the routers to discover each other


def wait(url: str, true: object) -> None:
    for _ in range(600):
        try:
            if true(httpx.get(url)):  # type: ignore[operator]
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    sys.exit(f"{url} did not become ready")


def publish(client: redis.Redis, ports: list[int]) -> None:
    made = document.default()
    policy = {"pool": POOL, "policy": "default", "version": 1, "document": made, "sha256": document.sha256(made)}
    common = {"epoch": 1, "state": "ready", "routable": True, "block_size": 16, "kv_blocks": KV_BLOCKS, "gpus": 1}
    instances = [{"id": f"bench-{i}", "url": f"http://127.0.0.1:{port}", **common} for i, port in enumerate(ports)]
    fleet = {"pool": POOL, "model": MODEL, "at": time.time(), "instances": instances}
    client.set(redis_keys.policy_key(POOL), stored(policy))
    client.set(redis_keys.fleet_key(POOL), stored(fleet))
    client.set(redis_keys.API_KEYS, stored({"required": [], "keys": []}))
    client.sadd(redis_keys.POOLS, POOL)


def free_ports(number: int) -> list[int]:
    probes = [socket.socket() for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def measure(sessions: Sessions, routers: int, engines: int, named: bool) -> tuple[Outcome, int]:
    """Run one arrangement; return its outcome, and the bytes in Redis that the routers exchanged."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir="/tmp") as made, ExitStack() as stack:
        folder = Path(made)
        ports = free_ports(engines + routers)
        url = f"unix://{folder / 'redis.sock'}"
        arguments = redis_server.arguments(redis_server.find_server(), folder / "redis.sock")
        server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        stack.callback(server.wait)
        stack.callback(server.terminate)
        redis_server.wait_until_ready(url)
        start_engines(stack, folder, ports[:engines])
        with redis.Redis.from_url(url) as client:
            publish(client, ports[:engines])
            start_routers(stack, folder, url, ports[engines:], engines)
            outcome = asyncio.run(replay(sessions, [f"http://127.0.0.1:{port}" for port in ports[engines:]], named))
            return outcome, int(client.memory_usage("weir:sent") or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--routers", default="1,2,4")
    parser.add_argument("--names", default="named,by prompt", help="how sessions are recognised")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    options = parser.parse_args()
    sessions = read_sessions(options.trace, options.sessions, options.turns)
    print(f"{len(sessions)} sessions, {options.engines} engines, ideal {ideal_share(sessions):.1%}")
    print(f"{'sessions':14}{'routers':>8}{'requests':>10}{'failed':>8}{'cached':>9}{'of one':>8}{'s':>7}{'told kB':>9}")
    rows = []
    for name in options.names.split(","):
        base = 0.0
        for routers in map(int, options.routers.split(",")):
            found, told = measure(sessions, routers, options.engines, name == "named")
            base = base or found.share
            rows.append({"sessions": name, "routers": routers, "cached": found.share, "of_one": found.share / base})
            print(
                f"{name:14}{routers:>8}{found.requests:>10}{found.failed:>8}{found.share:>9.2%}"
                f"{found.share / base:>8.1%}{found.seconds:>7.1f}{told / 1000:>9.0f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
