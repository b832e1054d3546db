"""The cost of KV events to routers of a host that each follow them, or share an index process (docs/router.md).

    .venv/bin/python -m bench.shared_index [--routers 1 4] [--engines 100] [--blocks 5000 …] [--seconds 20] [--rate 20]
                                           [--warm 10] [--shape unary] [--held 2000]
                                           [--shares] [--processes 1]

Engines are publishers of KV events (one process, without replay) beside the small C engines of bench/router.py, which
answer; each holds `--held` blocks of 16 tokens, and all together store `--blocks` a second in chains of 32 and remove
as many. Each number of routers runs without an index process, then with `--processes` of them (with
`--shares` only so), at `--rate` requests/s of the shape together. CPU seconds a second of each router and of the index
processes, and their resident memory; look-ups as the routers count them, beside the least that the machine allows
meanwhile: a byte to another process and back over a unix socket, as often (bare). In the end the engines fall silent,
and what the last router says of each engine's blocks is compared with what the engine holds; `behind` are those whose
events came more than a second late before, which it leaves to the approximate index. All of it is repeated for each
number of blocks. Prints a table.
"""

import argparse
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import msgpack
import redis
import zmq

from bench.decide import print_table
from bench.peers import Setting, cpu_s, memory_mb, process, serving
from bench.router import SHAPES, Arrivals, Bench, free_ports
from controlplane.base.process import redis_server
from router.contract.redis import redis_keys
from router.contract.redis.codec import decode
from router.contract.redis.router_status import RouterStatus
from router.policy.schema import document
from router.tests.values import stored

SIZE, CHAIN = 16, 32
REST = [random.Random(1).getrandbits(17) for _ in range(CHAIN * SIZE - 1)]  # tokens of a chain after its first
STEP_S = 0.01  # interval of the publishers: engines publish after each of their steps, at their own times
LOOK_S = 0.1
CONNECTED_S = 60.0
ON_DEVICE = r'^weir_router_index_blocks{instance="bench-(\d+)",.*tier="device"} (\S+)$'
SILENT_S = 30.0  # time until everything sent must be known


class Publisher:
    """An engine whose cache is full, so that it removes as many blocks as it stores."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", port: int, chains: Iterator[list[int]]) -> None:
        self._socket = context.socket(zmq.PUB)
        self._socket.bind(f"tcp://127.0.0.1:{port}")
        self._number = 0
        self.held = deque(chains)

    def store(self, chain: list[int]) -> None:
        self.held.append(chain)
        gone = {"type": "BlockRemoved", "block_hashes": self.held.popleft()[::-1], "medium": "GPU"}
        self._send([_stored(chain), gone])

    def tell_all(self) -> None:
        """Report everything that the engine holds to routers that know none or only part of it."""
        self._send([{"type": "AllBlocksCleared"}, *map(_stored, self.held)])

    def _send(self, events: list[dict[str, Any]]) -> None:
        payload = msgpack.packb([time.time(), events, 0])
        self._socket.send_multipart([b"", self._number.to_bytes(8, "big"), payload])
        self._number += 1


def _stored(chain: list[int]) -> dict[str, Any]:
    # Each block's hash covers all blocks before it, so no block of the chain occurs in another
    tokens = [chain[-1], *REST]
    named = {"type": "BlockStored", "block_hashes": chain, "parent_block_hash": None, "token_ids": tokens}
    return {**named, "block_size": SIZE, "medium": "GPU"}


def publish_events(ports: list[int], blocks: float, most: int, file: Path) -> None:
    """Run the publishers as a process until it is ended. While `file` exists they are silent and write there how many
    blocks were stored per second, and how many each engine holds; then each reports everything that it holds.
    """
    context, free = zmq.Context(), (list(range(name, name + CHAIN)) for name in count(0, CHAIN))
    publishers = [Publisher(context, port, islice(free, most // CHAIN)) for port in ports]
    turns, began, done = cycle(publishers), time.monotonic(), 0.0
    while True:
        while done < (time.monotonic() - began) * blocks:
            next(turns).store(next(free))
            done += CHAIN
        if file.exists():
            rate = done / (time.monotonic() - began)
            file.write_text(f"{rate:.0f} " + " ".join(str(len(one.held) * CHAIN) for one in publishers))
            while file.exists():
                time.sleep(LOOK_S)
            for one in publishers:
                one.tell_all()
            began, done = time.monotonic(), 0.0
        time.sleep(STEP_S)


def exact(port: int, file: Path, *, waits: bool = True) -> tuple[str, str]:
    """Return the blocks stored per second and, once the engines are silent, the number of engines whose blocks the
    router knows exactly. With `waits`, wait until it knows those of all engines.
    """
    file.touch()
    until = time.monotonic() + SILENT_S
    while time.monotonic() < until:
        time.sleep(1.0)
        stored_per_s, *wanted = file.read_text().split() or ["?"]
        known = dict(re.findall(ON_DEVICE, page(port), re.MULTILINE))
        right = sum(float(known.get(str(number), 0)) == float(one) for number, one in enumerate(wanted))
        if wanted and (right == len(wanted) or not waits):
            break
    file.unlink()
    return stored_per_s, f"{right} of {len(wanted)}"


def ping(rate: float) -> None:
    """Measure round trips as a process, until it is ended; then print their mean and median."""
    here, there = socket.socketpair()
    if not os.fork():
        here.close()
        while there.recv(1):
            there.send(b"!")
        os._exit(0)
    there.close()
    times: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"{statistics.mean(times):.2f} {statistics.median(times):.2f}"))
    while True:
        time.sleep(1 / rate)
        began = time.perf_counter()
        here.send(b"?")
        here.recv(1)
        times.append((time.perf_counter() - began) * 1e3)


def publish_fleet(client: redis.Redis, engines: list[int], events: list[int], most: int) -> None:
    """Publish an instance for each publisher; the engines that answer serve several."""
    made = document.default()
    policy = {"pool": "bench", "policy": "default", "version": 1, "document": made, "sha256": document.sha256(made)}
    common = {"epoch": 1, "state": "ready", "routable": True, "block_size": SIZE, "kv_blocks": most + 100}
    instances = [
        {
            **common,
            "id": f"bench-{number}",
            "url": f"http://127.0.0.1:{engines[number % len(engines)]}",
            "events": f"tcp://127.0.0.1:{port}",
            "tokenizer": "sim",
        }
        for number, port in enumerate(events)
    ]
    fleet = {"pool": "bench", "model": "bench", "at": time.time(), "instances": instances}
    client.set(redis_keys.policy_key("bench"), stored(policy))
    client.set(redis_keys.fleet_key("bench"), stored(fleet))
    client.set(redis_keys.API_KEYS, stored({"required": [], "keys": []}))
    client.sadd(redis_keys.POOLS, "bench")


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read().decode())


def total(text: str, pattern: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", text, re.MULTILINE))


def measured(bench: Bench, options: argparse.Namespace, routers: int, events: list[int], *, shares: bool) -> list[str]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-index-", dir="/tmp")))
        url = f"unix://{folder / 'redis.sock'}"
        arguments = redis_server.arguments(redis_server.find_server(), folder / "redis.sock")
        stack.enter_context(process(arguments, stdout=subprocess.DEVNULL))
        redis_server.wait_until_ready(url)
        with redis.Redis.from_url(url) as client:
            publish_fleet(client, bench.engines, events, options.held)
        index, flags = [], []
        sockets = [folder / f"index-{number}.sock" for number in range(options.processes if shares else 0)]
        for socket in sockets:
            argv = [sys.executable, "-m", "router.index", "--socket", socket, "--log-level", "error"]
            index.append(stack.enter_context(process(argv)).pid)
            flags = ["--index", ",".join(map(str, sockets))]
        running = []
        for number in range(routers):
            setting = Setting(folder, bench.engines, next(bench.ports), [], [], None)
            argv = [
                sys.executable,
                "-m",
                "router",
                "--redis",
                url,
                "--port",
                setting.port,
                "--id",
                f"r{number}",
                *flags,
            ]
            one = serving(setting, [*argv, "--log-level", "error"], f"r{number}", "/healthz")
            running.append(stack.enter_context(one))
        wait_for_exact(running[-1].port, len(events))
        exact(running[-1].port, bench.folder / "silent", waits=False)
        pids, ports = [[one.process.pid] for one in running], [one.port for one in running]
        bench.play(SHAPES[options.shape], ports, options.warm, Arrivals(options.rate, 1))
        argv = [sys.executable, "-m", "bench.shared_index", "--ping", str(options.rate)]
        pings = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        before, index_before, began = [cpu_s(one) for one in pids], cpu_s(index), time.monotonic()
        result = bench.play(SHAPES[options.shape], ports, options.seconds, Arrivals(options.rate, 2))
        seconds = time.monotonic() - began
        cpu = [(cpu_s(one) - earlier) / seconds for one, earlier in zip(pids, before, strict=True)]
        own = (cpu_s(index) - index_before) / seconds
        pings.terminate()
        bare = pings.communicate()[1].strip()
        pages = "\n".join(page(port) for port in ports)
        looked = total(pages, r"weir_router_index_lookups_total{.*answered.*}")
        lost = total(pages, r"weir_router_index_lookups_total{.*result=\"l.*}")
        mean = total(pages, r"weir_router_index_lookup_seconds_sum{.*}") / looked * 1e3 if looked else 0.0
        within = total(pages, r'weir_router_index_lookup_seconds_bucket{le="0.001",.*}') / looked if looked else 0.0
        late = behind(url, f"r{routers - 1}")
        stored_per_s, right = exact(ports[-1], bench.folder / "silent")
        followed = min(page(port).count("router_index_age_seconds{") for port in ports)
        return [
            *(str(routers), "shared" if shares else "each its own", f"{followed} of {len(events)}"),
            *(stored_per_s, str(late), right),
            *(f"{sum(cpu) / routers:.3f}", f"{own:.3f}", f"{sum(cpu) + own:.3f}"),
            *(f"{sum(map(memory_mb, pids)) / routers:.0f}", f"{memory_mb(index):.0f}"),
            *(f"{looked:.0f}", f"{lost:.0f}", f"{mean:.2f} ms", f"{within:.0%}", f"{bare} ms") * bool(shares),
            *("–",) * 5 * (not shares),
            f"{result['n']:.0f}",
        ]


def behind(url: str, router: str) -> int:
    """Return the number of engines whose events arrive too late to be used, by the router's report."""
    with redis.Redis.from_url(url) as client:
        status = decode(RouterStatus, client.get(redis_keys.router_key(router)))
    return sum(" behind" in one.why for one in status.indexes.values()) if status is not None else 0


def wait_for_exact(port: int, engines: int) -> None:
    until = time.monotonic() + CONNECTED_S
    while time.monotonic() < until:
        if page(port).count("index_age_seconds{") >= engines:
            return
        time.sleep(0.5)
    print("not all engines' events are followed yet", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--engines", type=int, default=100)
    parser.add_argument("--blocks", type=float, nargs="+", default=[5_000.0], help="stored a second by all engines")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=20.0, metavar="N", help="requests/s of all routers together")
    parser.add_argument("--shape", choices=SHAPES, default="unary", help="of the requests")
    parser.add_argument("--held", type=int, default=2_000, help="blocks of an engine")
    parser.add_argument("--shares", action="store_true", help="only with index processes")
    parser.add_argument("--processes", type=int, default=1, help="of the index")
    parser.add_argument("--ping", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--silent", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--publish", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.spans = []
    if options.publish:
        publish_events(options.publish, options.blocks[0], options.held, options.silent)
    if options.ping:
        ping(options.ping)
    heads = ["routers", "index", "followed", "blocks/s", "behind", "exact", "cores of a router"]
    heads += ["of the index process", "all", "MB of a router", "of the index process"]
    rows = [[*heads, "look-ups", "late, lost", "mean", "≤ 1 ms", "bare mean, median", "requests"]]
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir="/tmp") as folder, ExitStack() as stack:
        bench = Bench(Path(folder), options, stack)
        bench.prepare(SHAPES[options.shape])
        first = free_ports(options.engines)
        events = list(range(first, first + options.engines))
        for blocks in options.blocks:
            argv = [sys.executable, "-m", "bench.shared_index", "--blocks", blocks, "--held", options.held]
            argv += ["--silent", bench.folder / "silent", "--publish", *events]
            with process(argv):
                for routers in options.routers:
                    rows += [
                        measured(bench, options, routers, events, shares=shares)
                        for shares in (False, True)[options.shares :]
                    ]
    print_table(rows)


if __name__ == "__main__":
    main()
