"""Sums over time: after traffic with and without faults, what went in must have come out.

    .venv/bin/python -m bench.sums [--minutes 2] [--scale 30]

It starts its own Weir: two routers, and two simulated engines that run `scale` times as fast, so that 2 minutes are an
hour of theirs. Clients with an API key ask for whole answers, streams and two answers at once, and send requests that
are refused. In the second half they also leave streams, and FAULTS happen one after the other. Each half is summed when
nothing is in flight any more. The exit status is 1 if a request that a router answered has no receipt or two of them,
if tokens of the first half differ between engines, receipts, the key and the ledger of use, if the ledger has more
requests than were sent or lost any but those of a router's last seconds before its kill, or if a router still counts a
request.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers import memory_mb
from controlplane.tests.faults import World, api
from controlplane.tests.real_up import RealUp, running
from router.contract.redis import codec, redis_keys
from router.contract.redis.router_status import RouterStatus

CLIENTS = 6
STOPPED_S = 3.0
USE_S = 2.0  # age up to which use of a killed router may be lost with it
KEPT_S = 25.0  # time until the routers' counts are in the ledger
FLUSHED_S = 1.0  # age up to which receipts of a killed router may be lost with it
# (what, how): a signal, after which Weir restarts the process, or SIGSTOP for STOPPED_S
FAULTS = (
    ("redis", signal.SIGSTOP),
    ("control", signal.SIGKILL),
    ("engine", signal.SIGSTOP),
    ("router-1", signal.SIGSTOP),
    ("web", signal.SIGKILL),
    ("redis", signal.SIGSTOP),
    ("router-1", signal.SIGKILL),
    ("engine", signal.SIGKILL),
)
FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {{name: sums}}
spec:
  pools:
    - {{name: sums, model: llama-3.1-8b, kind: sim, replicas: 2, engine: {{time_scale: {scale}, seed: 1}}}}
"""
# The fields that a client sends besides model and prompt; each refusal has its own status.
ASKS: dict[str, dict[str, Any]] = {
    "whole": {},
    "stream": {"stream": True},
    "two answers": {"n": 2},
    "a stream of two": {"n": 2, "stream": True},
    "unknown model": {"model": "nope"},
    "no JSON": {},
}
LEFT = "left"


@dataclass
class Sent:
    ask: str
    n: int
    status: str = ""  # status of the answer, or the client's error
    at: float = 0.0


@dataclass
class Half:
    """The requests of clients, their receipts, and the counts of engines and of the key in the same time."""

    sent: dict[str, Sent] = field(default_factory=dict)
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: Counter[str] = field(default_factory=Counter)  # receipts by request
    killed_at: list[float] = field(default_factory=list)  # times at which routers were killed
    engines: dict[str, float] = field(default_factory=dict)  # output tokens of the engines that ran throughout
    charged: float = 0.0
    used: tuple[int, int] = (0, 0)  # the key's requests and tokens in the ledger of use


class Receipts:
    """Collects all receipts before Redis drops them."""

    def __init__(self, world: World) -> None:
        self._redis, self._last = world.redis, "0"
        self.half = Half()

    def read(self) -> None:
        entries: Any = self._redis.xrange(redis_keys.RECEIPTS, f"({self._last}" if self._last != "0" else "-")
        for name, fields in entries:
            self._last = name.decode()
            receipt = json.loads(fields[b"r"])
            if receipt["request_id"] in self.half.sent:
                self.half.receipts[receipt["request_id"]] = receipt
                self.half.written[receipt["request_id"]] += 1


def client(world: World, key: str, half: Half, name: str, asks: list[str], ended: threading.Event) -> None:
    draw = random.Random(name)
    for number in range(1_000_000):
        if ended.is_set():
            return
        ask = draw.choice(asks)
        more = ASKS.get(ask, {"stream": True})
        sent = half.sent[f"{name}-{number}"] = Sent(ask, more.get("n", 1))
        tokens = draw.randrange(10, 120) if ask != LEFT else 2_000
        body: Any = {"model": "llama-3.1-8b", "prompt": "x" * draw.randrange(50, 4_000), "max_tokens": tokens} | more
        text = "{" if ask == "no JSON" else json.dumps(body)
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        sent.status = _answer(world, text, headers | {"x-request-id": f"{name}-{number}"}, ask == LEFT)
        sent.at = time.monotonic()


def _answer(world: World, text: str, headers: dict[str, str], leaves: bool) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", world.weir.router_port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", text, headers)
        answer = connection.getresponse()
        answer.read(300) if leaves else answer.read()
        return str(answer.status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


@contextlib.contextmanager
def traffic(world: World, key: str, receipts: Receipts, name: str, asks: list[str]) -> Iterator[Half]:
    """Yield one half once nothing is under way, every receipt is written and all use is recorded."""
    half = receipts.half = Half()
    before = counted(world), charged(world), used(world)
    ended = threading.Event()
    threads = [
        threading.Thread(target=client, args=(world, key, half, f"{name}-{number}", asks, ended))
        for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield half
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    until(world, lambda: not in_flight(world), "nothing is in flight")
    time.sleep(3 * FLUSHED_S)
    receipts.read()
    half.charged = charged(world) - before[1]
    time.sleep(KEPT_S)
    requests, tokens = used(world)
    half.used = requests - before[2][0], tokens - before[2][1]
    half.engines = {
        name: n - before[0][key] for key, n in counted(world).items() if key in before[0] for name in key[:1]
    }


def until(world: World, holds: Any, what: str) -> None:
    with contextlib.suppress(AssertionError):
        world.weir.until(holds, what)


def pages(world: World) -> list[str]:
    """Return /metrics of each router that answers."""
    found = []
    for name in ("router-1", "router-2"):
        status = codec.decode(RouterStatus, world.redis.get(redis_keys.router_key(name)))
        with contextlib.suppress(OSError):
            found.append(_page(f"{status.url}/metrics" if status is not None else ""))
    return found


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def total(page: str, series: str) -> float:
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith((f"{series}{{", f"{series} "))
    )


def in_flight(world: World) -> float:
    found = pages(world)
    return sum(total(page, f"weir_router_{name}_requests") for page in found for name in ("inflight", "queued"))


def charged(world: World) -> float:
    return sum(total(page, "weir_router_key_tokens_total") for page in pages(world))


def used(world: World) -> tuple[int, int]:
    lines = [line for line in api(world.weir, "/use?by=key")["lines"] if line["name"] == "sums"]
    return (
        sum(line["requests"] for line in lines),
        sum(line["input_tokens"] + line["output_tokens"] for line in lines),
    )


def is_ready(weir: RealUp) -> bool:
    try:
        return [one["status"] for one in api(weir, "/instances")] == ["ready", "ready"]
    except (OSError, http.client.HTTPException):
        return False


def counted(world: World) -> dict[tuple[str, int], float]:
    """Return the output tokens by instance and epoch, once all are ready."""
    until(world, lambda: is_ready(world.weir), "two engines are ready")
    found = {}
    for one in api(world.weir, "/instances"):
        with contextlib.suppress(OSError):
            page = _page(f"{one['url']}/metrics")
            found[one["id"], one["epoch"]] = total(page, "vllm:generation_tokens_total")
    return found


def memory(world: World) -> dict[str, tuple[int, float]]:
    """Return (pid, MB) of each process by name."""
    names = ("web", "router-1", "router-2", "control", "experiments", "redis")
    found = {name: world.weir.child(name) for name in names}
    pids = {name: pid for name, pid in found.items() if pid is not None}
    pids |= {f"engine {number}": pid for number, (pid, _) in enumerate(sorted(world.weir.engines()))}
    return {name: (pid, memory_mb([pid])) for name, pid in pids.items()}


def do_faults(world: World, half: Half, receipts: Receipts, seconds: float) -> None:
    for name, number in FAULTS:
        pid = world.pid(name)
        os.kill(pid, number)
        print(f"{signal.Signals(number).name} {name}", flush=True)
        if (name, number) == ("router-1", signal.SIGKILL):
            half.killed_at.append(time.monotonic())
        if number == signal.SIGSTOP:
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
        wait(receipts, seconds / len(FAULTS))


def wait(receipts: Receipts, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        receipts.read()
        time.sleep(0.5)


def judge(name: str, half: Half, exact: bool) -> list[str]:
    """Return the inconsistencies that the sums show."""
    answered = {key for key, sent in half.sent.items() if sent.status.isdigit()}
    without = sorted(answered - half.written.keys())
    lost = [key for key in without if any(-FLUSHED_S < at - half.sent[key].at < FLUSHED_S for at in half.killed_at)]
    twice = [key for key, count in half.written.items() if count > 1]
    whole = [receipt for receipt in half.receipts.values() if receipt["output_tokens"] is not None]
    output = sum(receipt["output_tokens"] for receipt in whole if receipt["instance"] in half.engines)
    key = sum(receipt["output_tokens"] + (receipt["actual_prompt_tokens"] or 0) for receipt in whole)
    engines, retries = sum(half.engines.values()), sum(receipt["retries"] for receipt in half.receipts.values())
    blind = Counter(half.sent[one["request_id"]].ask for one in half.receipts.values() if one["output_tokens"] is None)
    statuses = Counter(sent.status for sent in half.sent.values())
    print(f"\n{name}: {len(half.sent)} requests: {', '.join(f'{n} {what}' for what, n in statuses.most_common())}")
    print(
        f"  answered {len(answered)}, receipts {len(half.written)}, of those answered without one {len(without)}",
        end="",
    )
    print(f" ({len(lost)} within {FLUSHED_S:g} s of a router's kill), twice {len(twice)}")
    print(
        f"  output tokens of engines that ran all the while {engines:,.0f}, in receipts {output:,}; {retries} retries"
    )
    young = sum(any(at - USE_S < sent.at < at + USE_S for at in half.killed_at) for sent in half.sent.values())
    print(f"  requests in the ledger {half.used[0]:,}; ended within {USE_S:g} s of a router's kill {young}")
    print(f"  receipts without tokens: {', '.join(f'{n} {what}' for what, n in blind.most_common())}")
    if exact:
        print(f"  tokens charged to the key {half.charged:,.0f}, in receipts {key:,}, in the ledger {half.used[1]:,}")
    wrong = [f"{len(without) - len(lost)} answered requests have no receipt"] * (len(without) > len(lost))
    wrong += [f"{len(twice)} requests have two receipts"] * bool(twice)
    if exact and engines != output:
        wrong.append(f"engines counted {engines:,.0f} output tokens, receipts {output:,}")
    if exact and half.charged != key:
        wrong.append(f"the key was charged {half.charged:,.0f} tokens, receipts say {key:,}")
    if exact and half.used[1] != key:
        wrong.append(f"the ledger has {half.used[1]:,} tokens, receipts say {key:,}")
    if not len(answered) - young <= half.used[0] <= len(half.sent):
        wrong.append(
            f"the ledger has {half.used[0]:,} requests of {len(answered):,} answered and {len(half.sent):,} sent"
        )
    return [f"{name}: {each}" for each in wrong]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="of both halves")
    parser.add_argument("--scale", type=float, default=30.0, help="of the engines' time")
    options = parser.parse_args()
    seconds, asks = options.minutes * 30, list(ASKS)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as fleet:
        Path(fleet.name).write_text(FLEET.format(scale=options.scale))
        with running("--routers", "2", "--no-demo", "--fleet", fleet.name) as weir:
            weir.until(lambda: is_ready(weir), "two engines are ready", 180.0)
            wrong = measure(World(weir), seconds, asks)
            weir.stop()
    print("\n" + ("\n".join(wrong) or "every sum is right"))
    sys.exit(bool(wrong))


def measure(world: World, seconds: float, asks: list[str]) -> list[str]:
    key = api(world.weir, "/keys", {"name": "sums", "tokens_per_min": 100_000_000})["key"]
    time.sleep(3.0)  # time for routers to see it
    receipts = Receipts(world)
    with traffic(world, key, receipts, "quiet", asks) as quiet:
        wait(receipts, seconds)
    before = memory(world)
    wrong = judge("without faults", quiet, exact=True)
    with traffic(world, key, receipts, "faulty", [*asks, LEFT]) as faulty:
        do_faults(world, faulty, receipts, seconds)
    wrong += judge("with faults", faulty, exact=False)
    if rest := in_flight(world):
        wrong.append(f"at rest routers count {rest:g} requests")
    after = memory(world)
    print("\n| process | MB after the first half | MB at the end |\n|---|---|---|")
    for name, (pid, mb) in after.items():
        same = name in before and before[name][0] == pid
        print(f"| {name} | {f'{before[name][1]:.1f}' if same else 'started since'} | {mb:.1f} |")
    return wrong


if __name__ == "__main__":
    main()
