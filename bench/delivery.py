"""The cost of a delivery to the routers, and the time in which they return to the live version.

    .venv/bin/python -m bench.delivery [--parts request,shadow,load,stop] [--rounds 2000] [--stops 200] [--rate 150]

request  CPU that a delivery adds to a request: its arm, its class, its tallies, and what is written every 5 s
shadow   CPU of a further decision by the candidate, by number of instances
load     one router under load, in turn without a delivery, with half of the requests in the candidate's arm, and with
         every request also decided in shadow: CPU per request, time to the first byte
stop     three routers under load: from the write of weir:stop until each says in /healthz that it has stopped, and from
         the publication of a full rollout until each has acknowledged it

For the cost of deliveries to a router without one: python -m bench.router --against CHECKOUT.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import redis

from bench.decide import SIZES, Bench, measure
from bench.peers import Running, Setting, process, publish, serving
from bench.router import SHAPES, Arrivals, Result, free_ports, middle
from bench.router import Bench as RouterBench
from controlplane.base.process import redis_server
from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import CELLS, DeliveryTally, StopValue, WatchValue
from router.contract.redis.published import FullRollout, PolicyAck, PolicyValue, Rollout, SplitRollout
from router.policy.rules.classify import classify
from router.policy.schema import document
from router.pool.rollout import Assignment, SplitState
from router.request.call import Call
from router.telemetry.delivery_tallies import DeliveryTallies, ShadowCounts
from router.telemetry.shadow import ShadowDecider
from router.tests.pool.splits import candidate, split
from router.upstream.answer.used import Usage

POOL = "bench"
ROUTERS = 3
GOAL_US = 15.0
SLOW = dict.fromkeys(("warm", "medium", "heavy"), (4.0, 0.3, 0.9))
CANDIDATE = document.default("lpwl")


# Part "request".


def running_split(share: float) -> SplitState:
    state = SplitState(split(share=share, slow=SLOW, candidate=candidate(CANDIDATE)), document.parse(CANDIDATE))
    state.watched(7, 1e12, 0.0)
    state.counts_from = 0.0
    return state


def request_call(number: int) -> Call:
    call = Call(f"req-{number:024x}", "/v1/chat/completions", 0.0, 1.0)
    call.session_key = f"{number:016x}"
    call.request = SimpleNamespace(prompt=SimpleNamespace(stream=True))  # type: ignore[assignment]
    call.prediction.prompt_tokens = 3_000 + number
    usage = Usage(prompt_tokens=3_000, cached_tokens=1_000, output_tokens=90)
    outcome = call.outcome
    outcome.label, outcome.usage, outcome.begun = "ok", usage, True
    outcome.ttft_ms, outcome.tpot_ms, outcome.e2e_ms = 123.4, 11.3, 900.0
    return call


def requests(rounds: int) -> None:
    state, policy = running_split(0.25), document.parse(document.default())
    tallies, held = DeliveryTallies(state), {f"demo-{number}": 64 * number for number in range(8)}
    calls = [request_call(number) for number in range(rounds)]

    def assign(number: int) -> None:
        call = calls[number]
        call.assigned = state.assign(call.session_key, call.id, 1.0)
        if call.assigned is not None:
            call.candidate = state.policy_of(call.assigned, 1.0)

    def class_of(number: int) -> None:
        assigned(number).request_class = classify(3_000 + number, max(held.values(), default=0), policy)

    def assigned(number: int) -> Assignment:
        made = calls[number].assigned
        assert made is not None
        return made

    steps = {
        "arm and cell": assign,
        "class": class_of,
        "tally, decided": lambda number: tallies.decided(calls[number], assigned(number)),
        "tally, ended": lambda number: tallies.ended(calls[number], assigned(number)),
    }
    clock_us = measure(lambda number: None, rounds).median
    print(f"{'µs of CPU per request':<26}{'median':>9}{'p99':>9}")
    whole = 0.0
    for name, step in steps.items():
        _, median, p99 = measure(step, rounds)
        whole += median - clock_us
        print(f"{name:<26}{median - clock_us:>9.2f}{p99 - clock_us:>9.2f}")
    print(f"{'together':<26}{whole:>9.2f}   goal ≤ {GOAL_US:g}: {'kept' if whole <= GOAL_US else 'MISSED'}")
    written(full_tallies())


def full_tallies() -> DeliveryTallies:
    made = DeliveryTallies(running_split(0.5))
    for number in range(CELLS * 6):
        call = request_call(number)
        arm, name = ("candidate", "control")[number % 2], ("warm", "medium", "heavy")[number // 2 % 3]
        call.assigned = Assignment(7, 3, arm, number // 6, number, True, name)  # type: ignore[arg-type]
        made.decided(call, call.assigned)
        made.ended(call, call.assigned)
    return made


def written(made: DeliveryTallies) -> None:
    slices = [measure(lambda _, key=key: made.read(*key), 200).median for key in made.requests()]  # type: ignore[misc]
    cells: dict[Any, Any] = {}
    for arm, name in made.requests():
        cells.setdefault(arm, {})[name] = made.read(arm, name)
    names = {"pool": POOL, "router": "router-1", "life": "5f2b1c9e5f2b1c9e"}
    value = DeliveryTally(delivery=7, generation=3, at=1.0, written=1, cells=cells, **names)
    encoding = measure(lambda _: codec.encode(value), 200).median
    print(
        f"each 5 s: {len(slices)} slices of {max(slices):.0f} µs at most, then {encoding:.0f} µs; "
        f"{CELLS} cells x 3 classes x 2 arms of few requests are {len(codec.encode(value)):,} bytes"
    )


# Part "shadow".


def shadows(rounds: int) -> None:
    print(f"\n{'instances':>9}{'µs of CPU: median':>20}{'p99':>9}{'deciding at first':>18}")
    for size in SIZES:
        bench, state = Bench(size, 1), running_split(0.0)
        bench.pool.split = SplitState(split(share=0.0, shadow=1.0, candidate=candidate(CANDIDATE)), state.candidate)
        bench.pool.split.watched(7, 1e12, 0.0)
        shadow, counts = ShadowDecider(lambda: 0.0, lambda: 0.0), ShadowCounts()  # clocks that never throttle
        calls = [decided(bench, number) for number in range(max(100, min(rounds, 100_000 // size)))]
        deciding = measure(bench.decided, len(calls)).median
        _, median, p99 = measure(lambda number: shadow.decide(calls[number], counts, 1.0), len(calls))  # noqa: B023
        assert counts.n == len(calls)
        print(f"{size:>9}{median:>20.0f}{p99:>9.0f}{deciding:>18.0f}")


def decided(bench: Bench, number: int) -> Call:
    call = request_call(number)
    call.pool = bench.pool
    call.assigned = bench.pool.split.assign(call.session_key, call.id, 1.0) if bench.pool.split is not None else None
    call.decision = bench.decided(number)
    return call


# Part "load".


def under_load(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir="/tmp") as folder, ExitStack() as stack:
        bench = RouterBench(Path(folder), options, stack)
        shape = SHAPES[options.shape]
        control, (router,) = stack.enter_context(_Routers(bench, Path(folder), 1))
        bench.prepare(shape)
        settings: dict[str, Callable[[], None]] = {
            "no delivery": control.full,
            "half in the candidate's arm": control.split,
            "decided once more": lambda: control.split(share=0.0, shadow=1.0),
        }
        rows: dict[str, list[Result]] = {name: [] for name in settings}
        for seed in range(options.turns):
            for name, put in settings.items():
                put()
                rows[name].append(bench.measure(shape, router, Arrivals(options.rate, seed)))
    print(f"\none router at {options.rate} requests/s; load average {os.getloadavg()[0]:.1f}")
    for name, rounds in rows.items():
        costs = [one["cpu_ms"] for one in rounds]
        print(
            f"{name:<28} CPU {middle(rounds, 'cpu_ms'):.3f} ms ({min(costs):.3f}–{max(costs):.3f})   "
            f"first byte p50 {middle(rounds, 'ttfb_p50'):.2f} ms   p99 {middle(rounds, 'ttfb_p99'):.2f} ms"
        )


# Part "stop".


class Control:
    """Plays the control plane: writes to Redis, and reads the routers' reports there."""

    def __init__(self, client: redis.Redis, routers: int) -> None:
        self.client, self.routers, self.generation = client, routers, 0
        self.acks = client.pubsub()
        self.acks.subscribe(redis_keys.ACKS)

    def put(self, rollout: Rollout) -> None:
        made = document.default()
        sha256 = document.sha256(made)
        value = PolicyValue(pool=POOL, policy="default", version=1, sha256=sha256, document=made, rollout=rollout)
        self.client.set(redis_keys.policy_key(POOL), codec.encode(value))
        self.client.publish(redis_keys.CHANGED, redis_keys.policy_key(POOL))

    def split(self, share: float = 0.5, shadow: float = 0.0) -> None:
        """Publish the split, and wait until every router applies it."""
        self.generation += 1
        watch = WatchValue(delivery=7, generation=self.generation)
        self.client.delete(redis_keys.stop_key(POOL))
        self.client.set(redis_keys.watch_key(POOL), codec.encode(watch), ex=redis_keys.WATCH_TTL_S)
        rollout: SplitRollout = split(
            generation=self.generation, share=share, shadow=shadow, slow=SLOW, candidate=candidate(CANDIDATE)
        )
        self.put(rollout)
        self.acknowledged("on")

    def full(self) -> None:
        self.generation += 1
        self.put(FullRollout(generation=self.generation))

    def stop(self) -> None:
        value = StopValue(delivery=7, why="a measurement", by="person", at=time.time())
        self.client.set(redis_keys.stop_key(POOL), codec.encode(value))
        self.client.publish(redis_keys.CHANGED, redis_keys.stop_key(POOL))

    def acknowledged(self, state: str) -> None:
        told: set[str] = set()
        ends_at = time.monotonic() + 30
        while len(told) < self.routers:
            message = self.acks.get_message(timeout=1.0)
            ack = codec.decode(PolicyAck, message["data"]) if message and message["type"] == "message" else None
            if ack is not None and (ack.generation, ack.split) == (self.generation, state):
                told.add(ack.router)
            if time.monotonic() > ends_at:
                raise SystemExit(f"generation {self.generation}: only {sorted(told)} acknowledged")


def until_stopped(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    while True:
        connection.request("GET", "/healthz")
        pool = json.loads(connection.getresponse().read())["pools"][POOL]
        if pool["split"] is None or pool["split"]["state"] != "on":
            return


def stops(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir="/tmp") as folder, ExitStack() as stack:
        bench = RouterBench(Path(folder), options, stack)
        control, routers = stack.enter_context(_Routers(bench, Path(folder), ROUTERS))
        bench.prepare(SHAPES["paced"])
        ports = [router.port for router in routers]
        loads = [threading.Thread(target=load, args=(bench, ports, options), daemon=True)]
        loads[0].start()
        time.sleep(1.0)
        told, published = [], []
        for number in range(options.stops):
            control.split()
            time.sleep(0.03)
            if number % 2:
                published.append(timed(lambda: (control.full(), control.acknowledged(""))))
            else:
                waiting = [threading.Thread(target=until_stopped, args=(port,)) for port in ports]
                told.append(timed(lambda: stopped(control, waiting)))  # noqa: B023 - called at once
        loads[0].join()
    print(f"\n{ROUTERS} routers at {options.rate} requests/s together; load average {os.getloadavg()[0]:.1f}")
    report("weir:stop -> last router says so", told)
    report("full rollout -> last acknowledgement", published)


def stopped(control: Control, waiting: list[threading.Thread]) -> None:
    control.stop()
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()


def timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return (time.perf_counter() - began) * 1e3


def report(name: str, taken: list[float]) -> None:
    taken.sort()
    p50, p99 = taken[len(taken) // 2], taken[min(len(taken) - 1, int(len(taken) * 0.99))]
    print(f"{name:<38} p50 {p50:7.1f} ms   p99 {p99:7.1f} ms   most {taken[-1]:7.1f} ms   n {len(taken)}")


def load(bench: RouterBench, ports: list[int], options: argparse.Namespace) -> None:
    """Send paced streams until all stops are over."""
    shape = SHAPES["paced"]
    numbers = (64, shape.base, shape.step, shape.turns, 1, 64, options.stops * 0.12)
    argv = [*bench.pin_rest, bench.load, "-r", options.rate, "-s", 1, bench.folder / "bodies", *numbers, *ports]
    run = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, check=True)
    print(f"load: {run.stdout.decode().strip()}")


class _Routers:
    """Several routers that share one Redis."""

    def __init__(self, bench: RouterBench, folder: Path, count: int) -> None:
        self._bench, self._folder, self._count, self._stack = bench, folder, count, ExitStack()

    def __enter__(self) -> tuple[Control, list[Running]]:
        socket = self._folder / "redis.sock"
        url = f"unix://{socket}"
        arguments = redis_server.arguments(redis_server.find_server(), socket)
        self._stack.enter_context(process(arguments, stdout=subprocess.DEVNULL))
        redis_server.wait_until_ready(url)
        client = self._stack.enter_context(redis.Redis.from_url(url))
        engines = [f"http://127.0.0.1:{port}" for port in self._bench.engines]
        publish(client, engines)
        return Control(client, self._count), [*self._started(url)]

    def _started(self, url: str) -> Iterator[Running]:
        first = free_ports(self._count)
        for number in range(self._count):
            port = first + number
            setting = Setting(self._folder, self._bench.engines, port, [], [], None)
            argv = [sys.executable, "-m", "router", "--redis", url, "--port", port, "--id", f"router-{number}"]
            yield self._stack.enter_context(serving(setting, [*argv, "--log-level", "warning"], str(port), "/healthz"))

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="request,shadow,load,stop")
    parser.add_argument("--shape", default="paced", choices=SHAPES, help="of the answers in `load`")
    parser.add_argument("--turns", type=int, default=5, help="of each setting of `load`")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--stops", type=int, default=200)
    parser.add_argument("--rate", type=int, default=150, help="requests/s of all routers together")
    parser.set_defaults(spans=[])
    options = parser.parse_args()
    parts = options.parts.split(",")
    if "request" in parts:
        requests(options.rounds)
    if "shadow" in parts:
        shadows(options.rounds)
    if "load" in parts:
        under_load(options)
    if "stop" in parts:
        stops(options)


if __name__ == "__main__":
    main()
