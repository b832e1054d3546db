"""CPU and memory of simulated engines: starts N of them and sends streamed completions at a rate.

.venv/bin/python bench/sim.py          # the heavy load: 8 engines, 34 requests/s of 12k tokens, time scale 10
.venv/bin/python bench/sim.py --time-scale 1 --rate 2 --prompt-tokens 6000 --output-tokens 250     # like the demo
"""

import argparse
import asyncio
import contextlib
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
CACHED = re.compile(rb'"cached_tokens":(\d+)')


@dataclass(frozen=True)
class Sim:
    process: subprocess.Popen[bytes]
    port: int


@dataclass
class LoadResult:
    done: int = 0
    failed: int = 0
    tokens: int = 0
    cached: int = 0
    chunks: int = 0
    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)


def main() -> int:
    options = parse(sys.argv[1:])
    with sims(options) as started:
        result, cpu_s, span_s = asyncio.run(measure(options, started))
        report(options, started, result, cpu_s, span_s)
    return int(result.failed > 0)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sims", type=int, default=8)
    parser.add_argument("--rate", type=float, default=34.0, help="requests/s, all engines together; 0 leaves them idle")
    parser.add_argument("--prompt-tokens", type=int, default=12_000)
    parser.add_argument("--output-tokens", type=int, default=343)
    parser.add_argument("--shared", type=float, default=0.37, help="share of a prompt that is a common prefix")
    parser.add_argument("--time-scale", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--subscribe", action="store_true", help="listen to every engine's KV events")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(words)


@contextlib.contextmanager
def sims(options: argparse.Namespace) -> Iterator[list[Sim]]:
    started = [start(options.time_scale) for _ in range(options.sims)]
    try:
        yield [Sim(process, port_of(process)) for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(timeout=10)


def start(time_scale: float) -> subprocess.Popen[bytes]:
    flags = {"port": 0, "events-port": 0, "replay-port": 0, "model": "sim", "time-scale": time_scale}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return subprocess.Popen([sys.executable, "-m", "fleet.simengine", *words], stdout=subprocess.PIPE, cwd=ROOT)


def port_of(process: subprocess.Popen[bytes]) -> int:
    """Read the port from the first line of its output."""
    line = process.stdout.readline() if process.stdout else b""
    if not line:
        raise SystemExit("an engine did not start")
    return int(line.rsplit(b":", 1)[1])


async def measure(options: argparse.Namespace, started: list[Sim]) -> tuple[LoadResult, list[float], float]:
    result, draw = LoadResult(), random.Random(options.seed)
    listeners = subscribe(started) if options.subscribe else []
    before, begin = [cpu_seconds(sim) for sim in started], time.monotonic()
    running = set()
    due = begin
    while options.rate > 0 and (due := due + draw.expovariate(options.rate)) < begin + options.seconds:
        await asyncio.sleep(max(due - time.monotonic(), 0))
        body = request(options, draw)
        running.add(asyncio.create_task(ask(draw.choice(started).port, body, options.output_tokens, result)))
    await asyncio.sleep(max(begin + options.seconds - time.monotonic(), 0))
    await asyncio.gather(*running)
    span_s = time.monotonic() - begin
    cpu_s = [cpu_seconds(sim) - earlier for sim, earlier in zip(started, before, strict=True)]
    for process in listeners:
        process.kill()
        process.wait()
    return result, cpu_s, span_s


def subscribe(started: list[Sim]) -> list[subprocess.Popen[bytes]]:
    """Start one process that receives and discards all events of all engines."""
    code = (
        "import sys, zmq, json, urllib.request as u\n"
        "s = zmq.Context().socket(zmq.SUB); s.subscribe(b'')\n"
        "for port in sys.argv[1:]:\n"
        "    s.connect(json.load(u.urlopen(f'http://127.0.0.1:{port}/kv_event_sources'))['0']['endpoint'])\n"
        "while True: s.recv_multipart()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *(str(sim.port) for sim in started)])
    time.sleep(1)
    return [process]


def request(options: argparse.Namespace, draw: random.Random) -> bytes:
    size = options.prompt_tokens * 4
    shared = int(size * options.shared)
    opening = (f"system {draw.randrange(4)} " * (shared // 9 + 1))[:shared]
    rest = (f"{draw.random():.16f} " * (size // 19 + 1))[: size - shared]
    return (
        b'{"model":"sim","ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,'
        b'"prompt":"%s"}' % (options.output_tokens, (opening + rest).encode())
    )


async def ask(port: int, body: bytes, tokens: int, result: LoadResult) -> None:
    began = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        await reader.readuntil(b"data: {")
        result.first_s.append(time.monotonic() - began)
        answer = await reader.read(-1)
        writer.close()
    except (OSError, EOFError):
        result.failed += 1
        return
    found = CACHED.findall(answer)
    if not found or not answer.endswith(b"0\r\n\r\n"):
        result.failed += 1
        return
    result.done += 1
    result.tokens += tokens
    result.cached += int(found[-1])
    result.chunks += answer.count(b"data: {")
    result.whole_s.append(time.monotonic() - began)


def cpu_seconds(sim: Sim) -> float:
    with open(f"/proc/{sim.process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(sim: Sim) -> float:
    with open(f"/proc/{sim.process.pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE / 1e6


def report(
    options: argparse.Namespace, started: list[Sim], result: LoadResult, cpu_s: list[float], span_s: float
) -> None:
    print(f"$ {' '.join(['bench/sim.py', *sys.argv[1:]])}   ({span_s:.1f} s, {os.cpu_count()} cores)")
    print("engine   core   RSS MB")
    for index, (sim, seconds) in enumerate(zip(started, cpu_s, strict=True)):
        print(f"{index:6} {seconds / span_s:6.3f} {resident_mb(sim):8.1f}")
    print(f"   all {sum(cpu_s) / span_s:6.3f} {sum(resident_mb(sim) for sim in started):8.1f}")
    if not result.done:
        return
    print(f"requests {result.done} ({result.done / span_s:.1f}/s), failed {result.failed}")
    print(f"output tokens {result.tokens} ({result.tokens / span_s:.0f}/s) in {result.chunks} chunks")
    print(f"cached prompt tokens {result.cached / result.done / options.prompt_tokens:.0%}")
    print(f"CPU per request {sum(cpu_s) / result.done * 1e3:.2f} ms")
    scale = options.time_scale
    for name, values in (("TTFT", result.first_s), ("E2E", result.whole_s)):
        print(f"{name} p50 {statistics.median(values) * scale * 1e3:.0f} ms virtual")


if __name__ == "__main__":
    raise SystemExit(main())
