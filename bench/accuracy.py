"""Accuracy of the prefix indexes' predictions: `python -m bench.accuracy [--requests 200] [--sessions 16]`.

Replays sessions of coding_agent_trace.jsonl (in WEIR_TRACE_DIR) through a standalone router and simulated engines, once
with their KV events (exact) and once without (approximate), with KV caches that hold everything, that evict, and that
are smaller than the requests in flight. Sessions run in parallel; the requests of a session follow without a pause.
Prints per cache and index: how many of all requests that index predicted, mean predicted and mean actual cached
tokens, the mean of |predicted - actual|, and the share of requests within one block (16 tokens). If engines run so
fast (`--time-scale`) that the router cannot follow their events, it does not use the exact index, as `n` shows.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import httpx

from controlplane.evidence.traces.formats import coding_agent
from controlplane.evidence.traces.types import TraceRequest
from fleet.counted import percent

ROOT = Path(__file__).parent.parent
BLOCK = 16  # tokens per block
WINDOW = 131_072
TRACE = "coding_agent_trace.jsonl"


@contextmanager
def process(*words: str, flag: str = "-m") -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen([sys.executable, flag, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


@contextmanager
def engines(count: int, kv_blocks: int, time_scale: float) -> Iterator[list[str]]:
    words = ("fleet.simengine", "--port", "0", "--model", "sim", "--events-port", "0", "--replay-port", "0")
    words += ("--kv-blocks", str(kv_blocks), "--time-scale", str(time_scale))
    if not count:
        yield []
        return
    with process(*words) as one, engines(count - 1, kv_blocks, time_scale) as others:
        assert one.stdout is not None
        yield [f"http://127.0.0.1:{one.stdout.readline().rpartition(':')[2].strip()}", *others]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def sessions(folder: str, count: int) -> list[list[TraceRequest]]:
    """Return each session, cut where prompt and answer exceed the window."""
    found: dict[str, list[TraceRequest]] = defaultdict(list)
    with (Path(folder) / TRACE).open() as lines:
        trace = coding_agent.read(islice(lines, 4_000), seed=1)
    for request in trace.requests:
        found[request.session].append(request)
    whole = [list(_within_window(requests)) for requests in found.values()]
    return sorted((one for one in whole if len(one) > 3), key=lambda one: one[0].session)[:count]


def _within_window(requests: list[TraceRequest]) -> Iterator[TraceRequest]:
    for request in requests:
        if request.input_tokens + request.output_tokens > WINDOW:
            return
        yield request


def text(request: TraceRequest) -> str:
    """Return the prompt's text. Blocks with the same number are the same text; a partial block is the request's own."""
    blocks = [_block(number) for run in request.blocks for number in run]
    rest = request.input_tokens * 4 - 256 * len(blocks)
    return "".join(blocks) + _block(-1 - request.index)[: max(rest, 0)]


def _block(number: int) -> str:
    return random.Random(number).randbytes(128).hex()


async def replay(url: str, listed: list[list[TraceRequest]], total: int) -> list[dict[str, object]]:
    """Replay the requests and return their receipts."""
    left = iter(range(total))
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def run(requests: list[TraceRequest]) -> None:
            for request in requests:
                if next(left, None) is None:
                    return
                limit = {"max_tokens": min(request.output_tokens, 64), "ignore_eos": True}
                body = {"model": "sim", "prompt": text(request), **limit}
                (await client.post("/v1/completions", json=body)).raise_for_status()

        await asyncio.gather(*map(run, listed))
        await asyncio.sleep(1)
        return list((await client.get("/receipts")).json()["receipts"])


async def ready(url: str) -> None:
    """Wait until the router serves and follows the KV events, if any."""
    async with httpx.AsyncClient(base_url=url) as client:
        for _ in range(600):
            try:
                if all(pool["ready"] for pool in (await client.get("/healthz")).json()["pools"].values()):
                    break
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
    await asyncio.sleep(3)


def measure(index: str, kv_blocks: int, options: argparse.Namespace) -> list[str]:
    listed = sessions(options.traces, options.sessions)
    with engines(options.engines, kv_blocks, options.time_scale) as urls:
        facts = [f"{url};events={url};tokenizer=sim" if index == "exact" else url for url in urls]
        port = free_port()
        words = ("router", "--instances", ",".join(facts), "--port", str(port), "--log-level", "warning")
        with process(*words):
            url = f"http://127.0.0.1:{port}"
            asyncio.run(ready(url))
            began = time.monotonic()
            receipts = asyncio.run(replay(url, listed, options.requests))
    pairs = [
        (int(str(one["predicted_cached"])), int(str(one["cached_tokens"])))
        for one in receipts
        if one["cached_tokens"] is not None and (one["index"] == index or options.all)
    ]
    return [f"{kv_blocks:,}", *row(index, pairs, len(receipts), time.monotonic() - began)]


def row(index: str, pairs: list[tuple[int, int]], receipts: int, took_s: float) -> list[str]:
    n = max(len(pairs), 1)
    predicted, actual = (sum(pair[place] for pair in pairs) / n for place in (0, 1))
    errors = [abs(guess - truth) for guess, truth in pairs]
    within = sum(error <= BLOCK for error in errors) / n
    means = [f"{one:,.0f}" for one in (predicted, actual, sum(errors) / n)]
    return [index, f"{len(pairs)}/{receipts}", *means, percent(within, ".1f"), f"{took_s:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy of the prefix indexes")
    parser.add_argument("--requests", type=int, default=200, help="at most 1,000, the receipts that the router keeps")
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--kv-blocks", default="40000,12000,8000", help="per engine, of 16 tokens; one run for each")
    parser.add_argument("--time-scale", type=float, default=2)
    parser.add_argument("--traces", default=os.environ.get("WEIR_TRACE_DIR", "."))
    parser.add_argument("--all", action="store_true", help="also count requests for which another index was in force")
    parser.add_argument("--index", choices=("exact", "approximate"), help="only this one")
    options = parser.parse_args()
    if not (Path(options.traces) / TRACE).is_file():
        parser.error(f"--traces (or WEIR_TRACE_DIR) {options.traces}: there is no {TRACE} there")
    rows = [["KV blocks", "index", "n", "predicted", "actual", "mean error", "within a block", "s"]]
    for kv_blocks in map(int, options.kv_blocks.split(",")):
        for index in ("approximate", "exact"):
            if options.index in (None, index):
                rows.append(measure(index, kv_blocks, options))
    widths = [max(len(one[column]) for one in rows) for column in range(len(rows[0]))]
    for one in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(one, widths, strict=True)).rstrip())
    print(json.dumps({"engines": options.engines, "sessions": options.sessions, "time_scale": options.time_scale}))


if __name__ == "__main__":
    main()
