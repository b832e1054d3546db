"""Check that no use is lost or counted twice while Redis, the database and routers fail under load.

    .venv/bin/python -m bench.use [--seeds 20] [--clients 8] [--seconds 12] [--routers 2] [--no-faults]
                            [--time-scale 4]

Two simulated engines, some routers, a Redis without a file and a separate database; this process takes the control
worker's step every second. For each seed clients send requests with an API key, while at drawn moments Redis is
suspended, or killed and started empty, the database is locked against every writer, or a router is ended and started
again; a balancer sends it no request from before its end until it is ready. Then the key's requests and tokens in the
ledger must be those that the engines counted. Exit status 1 if not. Without faults "GPU" compares the GPU-seconds
charged, before they are scaled to the bill, with the time in which engines had a request, as receipts tell it.
"""

import argparse
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import redis

from bench.replicas import MODEL, free_ports, publish, start_engines, wait
from bench.sums import total
from controlplane.base.process import redis_server
from router.contract.redis import redis_keys
from router.contract.redis.codec import decode
from router.contract.redis.receipt import Receipt
from router.tests.values import stored

ROOT = Path(__file__).parent.parent
SECRET = "sk-weir-bench"
PATIENCE_S = 60.0  # longest wait for the ledger to have everything
AWAY_S = (2.0, 6.0)  # shortest and longest outage
SERIES = ("vllm:request_success_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total")


class Counts(NamedTuple):
    """Counts of the engines, or in the ledger."""

    requests: int
    prompt: int
    output: int


class World:
    def __init__(self, folder: Path, stack: ExitStack, options: argparse.Namespace) -> None:
        self.folder, self._stack = folder, stack
        self.engines, self.routers = free_ports(2), free_ports(options.routers)
        self.serving = list(self.routers)  # routers that the balancer sends requests to
        self.url = f"unix://{folder / 'redis.sock'}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start_redis()
        start_engines(stack, folder, self.engines, options.time_scale)
        self.publish()
        for port in self.routers:
            self.start_router(port)

    def start_redis(self) -> None:
        socket = self.folder / "redis.sock"
        self.start("redis", redis_server.arguments(redis_server.find_server(), socket))
        redis_server.wait_until_ready(self.url)

    def publish(self) -> None:
        """Publish the values that the control worker restores if Redis is empty."""
        key = {"id": "1", "name": "bench", "sha256": sha256(SECRET.encode()).hexdigest()}
        with redis.Redis.from_url(self.url) as client:
            publish(client, self.engines)
            client.set(redis_keys.API_KEYS, stored({"required": [], "keys": [key]}))

    def start_router(self, port: int) -> None:
        flags = ("--redis", self.url, "--port", str(port), "--id", f"router-{port}", "--log-level", "warning")
        self.start(f"router {port}", [sys.executable, "-m", "router", *flags])
        wait(f"http://127.0.0.1:{port}/healthz", lambda answer: answer.json().get("pools", {}))

    def start(self, name: str, argv: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log)
        self._processes[name] = process
        self._stack.callback(lambda: (process.kill(), process.wait()))

    def signal(self, name: str, number: int) -> None:
        self._processes[name].send_signal(number)

    def end(self, name: str, number: int) -> None:
        self.signal(name, number)
        self._processes[name].wait()

    def counted(self) -> Counts:
        pages = [httpx.get(f"http://127.0.0.1:{port}/metrics").text for port in self.engines]
        return Counts(*(round(sum(total(page, name) for page in pages)) for name in SERIES))


def redis_suspended(world: World, seconds: float) -> None:
    world.signal("redis", signal.SIGSTOP)
    time.sleep(seconds)
    world.signal("redis", signal.SIGCONT)


def redis_killed(world: World, seconds: float) -> None:
    world.end("redis", signal.SIGKILL)
    time.sleep(seconds)
    world.start_redis()
    world.publish()


def database_locked(world: World, seconds: float) -> None:
    with contextlib.closing(sqlite3.connect(world.folder / "weir.sqlite3", timeout=10)) as database:
        database.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        database.rollback()


def router_ended(world: World, seconds: float) -> None:
    port = world.routers[0]
    world.serving.remove(port)
    time.sleep(0.5)  # time for requests that were just sent there
    world.end(f"router {port}", signal.SIGTERM)
    time.sleep(seconds)
    world.start_router(port)
    world.serving.append(port)


FAULTS: tuple[Callable[[World, float], None], ...] = (redis_suspended, redis_killed, database_locked, router_ended)


def of_ledger() -> Counts:
    from django.db.models import F, Sum

    from controlplane.traffic.use.models import Use

    answered = Sum(F("requests") - F("refused") - F("client_errors") - F("failed") - F("cancelled"), default=0)
    sums = {"prompt": Sum("input_tokens", default=0), "output": Sum("output_tokens", default=0)}
    return Counts(**Use.objects.filter(key="1").aggregate(requests=answered, **sums))


def control(ended: threading.Event) -> None:
    """Play the control worker: a step that fails is repeated."""
    from django.db import DatabaseError, connection

    from controlplane.traffic.use import step

    while not ended.wait(1.0):
        with contextlib.suppress(DatabaseError, redis.RedisError):
            step.gather(datetime.now(UTC))
    connection.close()


def gpu_seconds() -> float:
    """Return the GPU-seconds charged to the key, before they are scaled to the bill."""
    from django.db.models import Sum

    from controlplane.traffic.use.models import Use

    charged: int = Use.objects.filter(key="1").aggregate(sum=Sum("gpu_us", default=0))["sum"]
    return charged / 1e6


def busy_seconds(world: World, since: float, requests: int) -> float:
    """Return the time in which an engine had a request, as the routers measured it, summed over engines."""
    found, ends = list[Receipt](), time.monotonic() + PATIENCE_S
    with redis.Redis.from_url(world.url) as client:
        while len(found) < requests and time.monotonic() < ends:
            time.sleep(0.5)
            read = [decode(Receipt, fields[b"r"]) for _, fields in client.xrange(redis_keys.RECEIPTS)]
            found = [one for one in read if one is not None and one.at >= since and one.instance]
    until, busy = dict[str, float](), 0.0
    for one in sorted(found, key=lambda one: one.at + (one.queue_ms or 0) / 1e3):
        assert one.instance is not None
        assert one.e2e_ms is not None
        before = max(one.at + (one.queue_ms or 0) / 1e3, until.get(one.instance, 0.0))
        until[one.instance] = max(before, one.at + one.e2e_ms / 1e3)
        busy += until[one.instance] - before
    return busy


def client(world: World, draw: random.Random, ended: threading.Event, answers: list[int]) -> None:
    with httpx.Client(headers={"authorization": f"Bearer {SECRET}"}, timeout=60) as asked:
        while not ended.is_set():
            body = {"model": MODEL, "prompt": "x" * draw.randrange(50, 2_000), "max_tokens": draw.randrange(1, 40)}
            if not world.serving:
                time.sleep(0.1)
                continue
            url = f"http://127.0.0.1:{draw.choice(world.serving)}/v1/completions"
            try:
                answers.append(asked.post(url, json=body | {"stream": draw.random() < 0.5}).status_code)
            except httpx.TransportError:
                answers.append(0)
            time.sleep(draw.random() * 0.1)


def run(world: World, seed: int, options: argparse.Namespace) -> bool:
    draw, ended, answers = random.Random(seed), threading.Event(), list[int]()
    charged, at = gpu_seconds(), time.time()
    arguments: list[Any] = [(world, random.Random(f"{seed}-{n}"), ended, answers) for n in range(options.clients)]
    threads = [threading.Thread(target=client, args=each) for each in arguments]
    for thread in threads:
        thread.start()
    possible = FAULTS if len(world.routers) > 1 else FAULTS[:-1]
    faults = [] if options.no_faults else draw.sample(possible, k=draw.randint(1, 3))
    began = time.monotonic()
    for fault in faults:
        time.sleep(draw.random() * options.seconds / 4)
        fault(world, draw.uniform(*AWAY_S))
    time.sleep(max(0.0, options.seconds - (time.monotonic() - began)))
    ended.set()
    for thread in threads:
        thread.join()
    engines, since = world.counted(), time.monotonic()
    while (ledger := of_ledger()) != engines and time.monotonic() - since < PATIENCE_S:
        time.sleep(0.5)
    said = ", ".join(fault.__name__.replace("_", " ") for fault in faults) or "none"
    others = Counter(status for status in answers if status != 200)
    refused = ", ".join(f"{count:,} × {status or 'broken'}" for status, count in sorted(others.items())) or "none"
    cells = (str(seed), said, f"{len(answers):,}", refused)
    busy = busy_seconds(world, at, answers.count(200)) if options.no_faults else 0.0
    sums = (" ".join(f"{count:,}" for count in engines), "the same" if ledger == engines else str(ledger))
    sums = (*sums, f"{(gpu_seconds() - charged) / busy - 1:+.2%} of {busy:.0f} s" if busy else "–")
    print(f"| {' | '.join((*cells, *sums))} | {time.monotonic() - since:.1f} s |", flush=True)
    return ledger == engines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=12.0, help="of load, at least")
    parser.add_argument("--routers", type=int, default=2)
    parser.add_argument("--time-scale", type=float, default=4.0, help="of the engines: 1 answers in about 0.4 s")
    parser.add_argument("--no-faults", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir="/tmp") as made, ExitStack() as stack:
        world = prepared(Path(made), stack, options)
        ended = threading.Event()
        thread = threading.Thread(target=control, args=(ended,))
        thread.start()
        print(
            "| seed | faults | requests | not answered | engines: requests, prompt, output tokens in all | ledger ",
            end="",
        )
        print("| GPU | after |\n|---|---|---|---|---|---|---|---|", flush=True)
        try:
            same = [run(world, seed, options) for seed in range(options.seeds)]
        finally:
            ended.set()
            thread.join()
    print(f"\n{sum(same)} of {len(same)} seeds: the ledger has what the engines counted")
    sys.exit(not all(same))


def prepared(folder: Path, stack: ExitStack, options: argparse.Namespace) -> World:
    os.environ["WEIR_DATA_DIR"] = str(folder)
    os.environ["DATABASE_URL"] = f"sqlite://{folder / 'weir.sqlite3'}"
    os.environ["REDIS_URL"] = f"unix://{folder / 'redis.sock'}"
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    return World(folder, stack, options)


if __name__ == "__main__":
    main()
