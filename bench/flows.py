"""Cost of a fault under offloads: prefill and decode instances killed or suspended while requests pass through both.

    .venv/bin/python -m bench.flows [--flows "trtllm,sglang,neuron,neuron 1P1D"] [--seconds 6] [--rate 6] [--write]

For each flow it starts a router and four simulated engines, two that prefill and two that decode, does one fault after
another under load and prints a table; `--write` puts it into docs/findings/tables/offloads.csv. 1P1D: each decoder is
paired with one prefill engine. Every whole answer is compared with the text that one engine alone gives.
"""

import argparse
import asyncio
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench import sheets
from fleet.simengine.generation import SamplingParams, TextGenerator
from router.contract.connectors import CONNECTORS
from router.policy.schema import document

COLUMNS = (
    *("flow", "fault", "of", "requests lost", "wrong", "offloaded", "by another prefill", "by the decoder", "retried"),
    "TTFT p50, max",
)
TOKENS = 200  # tokens per answer
PROMPT = "the quick brown fox " * 1200  # 6,000 tokens
SEED = 1
SUSPENDED_S = 2.0
PATIENCE_S = 60.0
FAULTS = (
    ("none", ""),
    ("kill -9", "prefill"),
    ("kill -9", "decode"),
    ("SIGSTOP", "prefill"),
    ("SIGSTOP", "decode"),
)
POLICY = document.apply_overrides(
    document.default("adaptive_v1"),
    {"flow.heavy": "offload", "classes.heavy_new_tokens": 3000, "classes.warm_new_tokens": 100},
)


class Engine:
    def __init__(self, name: str, role: str, connector: str, pair: "Engine | None" = None) -> None:
        self.name, self.role, self.connector, self.pair = name, role, connector, pair
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start again on the same port."""
        given = {"port": self.port, "model": "llama", "seed": SEED, "kv": self.connector, "role": self.role}
        if self.pair is not None:
            given["kv-peer"] = f"127.0.0.1:{self.pair.port}"
        words = [f"--{name}={value}" for name, value in given.items()]
        argv = [sys.executable, "-m", "fleet.simengine", *words]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    @property
    def option(self) -> str:
        known = f"http://127.0.0.1:{self.port};id={self.name};role={self.role};connector={self.connector}"
        if CONNECTORS[self.connector].needs_bootstrap:
            known += f";kv.bootstrap=http://127.0.0.1:{self.port}"
        return f"{known};kv.pair={self.pair.name}" if self.pair is not None else known

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass
class Found:
    sent: int = 0
    wrong: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    ttft_s: list[float] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)


class World:
    """A router and its engines."""

    def __init__(self, flow: str, stack: ExitStack) -> None:
        self.flow = flow
        self.connector, _, pairs = flow.partition(" ")
        prefills = [Engine(f"prefill-{i}", "prefill", self.connector) for i in (0, 1)]
        known = prefills if pairs else (None, None)
        self.engines = [*prefills, *(Engine(f"decode-{i}", "decode", self.connector, known[i]) for i in (0, 1))]
        for engine in self.engines:
            stack.callback(engine.stop)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "policy.json").write_text(json.dumps(POLICY))
        log = stack.enter_context((folder / "log").open("wb"))
        options = ("--port", "0", "--instances", ",".join(engine.option for engine in self.engines))
        argv = [sys.executable, "-m", "router", *options, "--policy", str(folder / "policy.json")]
        environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
        self.router = subprocess.Popen(argv, stderr=log, env=environment)
        stack.callback(self.router.wait)
        stack.callback(self.router.terminate)
        self.url = _listens((folder / "log"), self.router)
        self.number = 0

    async def ready(self, client: httpx.AsyncClient) -> None:
        end = time.monotonic() + PATIENCE_S
        while (await client.get("/healthz")).json()["pools"]["default"]["ready"] < len(self.engines):
            if time.monotonic() > end:
                raise SystemExit(f"{self.connector}: the engines are not ready after {PATIENCE_S:g} s")
            await asyncio.sleep(0.1)

    async def ask(self, client: httpx.AsyncClient, found: Found) -> None:
        self.number += 1
        prompt, streams = f"{self.number} {PROMPT}", self.number % 2 == 0
        body = {"model": "llama", "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream": streams}
        request_id = f"bench-{self.flow.replace(' ', '-')}-{self.number}"
        found.sent += 1
        found.ids.append(request_id)
        try:
            said = await _said(client, body, request_id, found)
        except (httpx.HTTPError, Lost) as error:
            found.lost[str(error) or type(error).__name__] += 1
            return
        expected = TextGenerator(SEED).answer(prompt.encode(), SamplingParams(TOKENS, ignore_eos=True)).text
        found.wrong += said != expected


class Lost(Exception):
    pass


async def _said(client: httpx.AsyncClient, body: dict[str, Any], request_id: str, found: Found) -> str:
    began = time.monotonic()
    text, whole = "", not body["stream"]
    async with client.stream("POST", "/v1/completions", json=body, headers={"x-request-id": request_id}) as answer:
        if answer.status_code != 200:
            raise Lost(f"status {answer.status_code}")
        if not body["stream"]:
            return str(json.loads(await answer.aread())["choices"][0]["text"])
        async for line in answer.aiter_lines():
            if line.startswith('data: {"error"'):
                raise Lost("streams ended by an error")
            if line.startswith("data: {"):
                if not text:
                    found.ttft_s.append(time.monotonic() - began)
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
            whole = whole or line == "data: [DONE]"
    if not whole:
        raise Lost("a stream without its end")
    return text


def _listens(log: Path, process: "subprocess.Popen[bytes]") -> str:
    while "listens on " not in log.read_text():
        if process.poll() is not None:
            raise SystemExit(f"the router ended: {log.read_text()}")
        time.sleep(0.05)
    return log.read_text().split("listens on ")[1].split()[0]


async def measure(
    world: World, client: httpx.AsyncClient, fault: tuple[str, str], seconds: float, rate: float
) -> Found:
    await world.ready(client)
    found = Found()
    victim = next((engine for engine in world.engines if engine.role == fault[1]), None)
    async with asyncio.TaskGroup() as group:
        group.create_task(_inflict(fault[0], victim, seconds / 3))
        for _ in range(round(seconds * rate)):
            group.create_task(world.ask(client, found))
            await asyncio.sleep(1 / rate)
    receipts = {one["request_id"]: one for one in (await client.get("/receipts")).json()["receipts"]}
    found.receipts = [receipts[name] for name in found.ids if name in receipts]
    return found


async def _inflict(fault: str, victim: Engine | None, after_s: float) -> None:
    await asyncio.sleep(after_s)
    if victim is None:
        return
    victim.process.send_signal(signal.SIGKILL if fault == "kill -9" else signal.SIGSTOP)
    await asyncio.sleep(SUSPENDED_S)
    if fault == "kill -9":
        victim.stop()
        await asyncio.to_thread(victim.start)
    else:
        victim.process.send_signal(signal.SIGCONT)


def _cells(world: World, fault: tuple[str, str], found: Found) -> tuple[str, ...]:
    why = ", ".join(f"{count} {what}" for what, count in found.lost.most_common())
    lost = sum(found.lost.values())
    offloaded = [one for one in found.receipts if one["flow"] == f"offload_{world.connector}"]
    times = sorted(found.ttft_s)
    return (
        *(world.flow, fault[0], fault[1] or "–"),
        f"{lost} of {found.sent}" + (f" ({why})" if why else ""),
        str(found.wrong),
        str(len(offloaded)),
        str(sum(bool(one["offload_reason"]) for one in offloaded)),
        str(sum(one.get("offload") == "fallback" for one in found.receipts)),
        str(sum(one["retries"] > 0 for one in found.receipts)),
        f"{times[len(times) // 2]:.2f} s, {times[-1]:.2f} s" if times else "–",
    )


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


async def measured(flow: str, seconds: float, rate: float) -> list[str]:
    lines = []
    with ExitStack() as stack:
        world = World(flow, stack)
        async with httpx.AsyncClient(base_url=world.url, timeout=PATIENCE_S) as client:
            for fault in FAULTS:
                lines.append(line(_cells(world, fault, await measure(world, client, fault, seconds, rate))))
                print(lines[-1], flush=True)
    return lines


def write(lines: list[str], rate: float) -> None:
    """Write the rows; rows that were not measured keep their values."""
    about = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, load average {os.getloadavg()[0]:.1f}, {rate:g} requests/s"
    known = sheets.updated("offloads", ([*sheets.cells(each), about] for each in lines), named_by=3)
    rows = [row for (flow, *_), row in known.items() if flow.partition(" ")[0] in CONNECTORS]
    sheets.save("offloads", [[*COLUMNS, "measured"], *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--flows", default="trtllm,sglang,neuron,neuron 1P1D", help=f"of {', '.join(CONNECTORS)}, or neuron 1P1D"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each row")
    parser.add_argument("--rate", type=float, default=6.0, help="requests per second")
    parser.add_argument("--write", action="store_true", help="put the table into docs/findings/tables")
    options = parser.parse_args()
    lines = [
        each for flow in options.flows.split(",") for each in asyncio.run(measured(flow, options.seconds, options.rate))
    ]
    if options.write:
        write(lines, options.rate)


if __name__ == "__main__":
    main()
