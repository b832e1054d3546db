"""The value of the blocks that a decoder lends to the prefill of a session's next turn: two real vLLM, NIXL, CPU.

    make engines && .venv/bin/python -m bench.reuse [--conversations 224] [--write]

A router alone stands before a prefill and a decode engine that run with vLLM's `bidirectional_kv_xfer`. Conversations
go in batches of 14. Their first turns run together, whole, as vLLM 0.32 tells of no stream where its blocks are; their
second turns, which add 64 tokens, one after the other, streamed, half of them under another session's name, so that
nothing is offered, in random order. In every other batch the prefill engine has forgotten all it had cached, like one
that did not serve the first turn. Tokens computed are those that the prefill engine counts. The weights of the tiny
model are so small that answers hardly depend on the KV: they are not compared.
"""

import argparse
import asyncio
import datetime as dt
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from bench import sheets
from controlplane.tests.engines.fleet import CODE
from router.tests.ports import free_ports

BATCH = 14
PROMPT, REPLY, ADDED = 800, 128, 64  # tokens
EXTRA = {"bidirectional_kv_xfer": True, "kv_recompute_threshold": 64, "decoder_kv_blocks_ttl": 120}
KV = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
ROLES = ("prefill", "decode")
START_S = 1200.0  # a busy machine
COLUMNS = ("prefill engine", "offered", "n", "tokens computed", "TTFT p50", "95 % interval", "measured")
COMPUTED = "vllm:prompt_tokens_by_source_total"
Row = dict[str, Any]


@contextmanager
def vllm(python: Path, folder: Path, name: str) -> Iterator[str]:
    """Run an engine; yield its URL."""
    port, side, events, replay = free_ports(4)
    publishes = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv"}
    publishes |= {"endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://*:{replay}"}
    words = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(python.parent.parent / "tiny-model")]
    words += ["--served-model-name", "tiny", "--load-format", "dummy", "--dtype", "float32", "--port", str(port)]
    words += ["--max-model-len", "16384", "--block-size", "32", "--enforce-eager", "--num-gpu-blocks-override", "16384"]
    words += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    words += ["--kv-events-config", json.dumps(publishes)]
    words += ["--kv-transfer-config", json.dumps(KV | {"kv_connector_extra_config": EXTRA})]
    environment = {
        **{"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        **{"VLLM_CPU_OMP_THREADS_BIND": "nobind", "KMP_BLOCKTIME": "0", "VLLM_CPU_KVCACHE_SPACE": "1"},
        **{"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side)},
        **{"VLLM_SERVER_DEV_MODE": "1"},  # for POST /reset_prefix_cache, on loopback only
    }
    with (folder / f"{name}.log").open("wb") as log:
        engine = subprocess.Popen(
            [python, *words, "--host", "127.0.0.1"], env={**os.environ, **environment}, stdout=log, stderr=log
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            engine.terminate()
            try:
                engine.wait(30)
            except subprocess.TimeoutExpired:
                engine.kill()
                engine.wait()


@contextmanager
def router(folder: Path, prefill: str, decode: str, model: Path) -> Iterator[str]:
    """Run a router; yield its URL."""
    (port,) = free_ports(1)
    further = f"connector=nixl;kv.takes_lent=true;tokenizer={model}"
    urls = zip(ROLES, (prefill, decode), strict=True)
    each = [f"{url};id={role};role={role};events={url};{further}" for role, url in urls]
    words = ["-m", "router", "--instances", ",".join(each), "--model", "tiny", "--port", str(port)]
    with (folder / "router.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, cwd=CODE)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


@dataclass
class Conversation:
    name: str
    prompt: list[int]

    def next_turn(self, reply: list[int], draw: random.Random) -> None:
        self.prompt = [*self.prompt, *reply, *tokens(draw, ADDED)]


def tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(10, 500) for _ in range(count)]


class Pair:
    def __init__(self, client: httpx.AsyncClient, prefill: str, weir: str) -> None:
        self.client, self.prefill, self.weir = client, prefill, weir

    async def ask(self, url: str, prompt: list[int], most: int, **fields: Any) -> Row:
        body: Row = {"model": "tiny", "prompt": prompt, "max_tokens": most, "temperature": 0, "ignore_eos": True}
        answer = await self.client.post(url + "/v1/completions", json=body | fields)
        answer.raise_for_status()
        found: Row = answer.json()
        return found

    async def first_turn(self, talk: Conversation, draw: random.Random) -> None:
        answer = await self.ask(self.weir, talk.prompt, REPLY, user=talk.name, return_token_ids=True)
        talk.next_turn(answer["choices"][0]["token_ids"], draw)

    async def computed(self) -> float:
        """Return the tokens that the prefill engine has computed."""
        page = (await self.client.get(self.prefill + "/metrics")).text
        rows = [line for line in page.splitlines() if line.startswith(COMPUTED) and 'source="local_compute"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in rows)

    async def second_turn(self, talk: Conversation, *, offered: bool) -> Row:
        body: Row = {"model": "tiny", "prompt": talk.prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "user": talk.name if offered else talk.name + " anew"}
        before, began, first = await self.computed(), time.perf_counter(), 0.0
        async with self.client.stream("POST", self.weir + "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    first = first or time.perf_counter()
        return {
            "computed": await self.computed() - before,
            "prompt": len(talk.prompt),
            "ttft": first - began,
        }

    async def ready(self) -> None:
        end = time.monotonic() + START_S
        while await self._unready():
            if time.monotonic() > end:
                raise SystemExit(f"not ready after {START_S:g} s")
            await asyncio.sleep(1)

    async def _unready(self) -> bool:
        """Return whether an engine does not serve yet, or the router does not yet know its blocks exactly."""
        try:
            answer = await self.client.get(self.weir + "/metrics")
        except httpx.HTTPError:
            return True
        return answer.text.count('weir_router_index_believed{index="exact"') < 2

    async def forget(self) -> None:
        """Empty the prefill engine's cache, which is possible once no decoder will fetch any of it."""
        for _ in range(60):
            answer = await self.client.post(self.prefill + "/reset_prefix_cache")
            probe = await self.ask(self.prefill, list(range(10, 138)), 1)
            if answer.status_code == 200 and not (probe["usage"]["prompt_tokens_details"] or {}).get("cached_tokens"):
                return
            await asyncio.sleep(0.5)
        raise SystemExit("the prefill engine does not forget")


async def measured(pair: Pair, conversations: int) -> list[Row]:
    draw, rows = random.Random(), list[Row]()  # engines that already run know no prompt of an earlier run
    await pair.ready()
    for name in ("a handshake", "an answer that shows what it lends"):
        await pair.first_turn(Conversation(name, tokens(draw, PROMPT)), draw)
    for batch in range(conversations // BATCH):
        talks = [Conversation(f"{batch} {number}", tokens(draw, PROMPT)) for number in range(BATCH)]
        await asyncio.gather(*(pair.first_turn(talk, draw) for talk in talks))
        cold = batch % 2 == 1
        if cold:
            await pair.forget()
        offers = [True, False] * (BATCH // 2)
        draw.shuffle(offers)
        for talk, offers_it in zip(talks, offers, strict=True):
            row = await pair.second_turn(talk, offered=offers_it)
            rows.append(row | {"cold": cold, "offered": offers_it})
            print(batch, json.dumps(rows[-1]), f"load {os.getloadavg()[0]:.1f}", flush=True)
    return rows


def interval(values: list[float], draw: random.Random) -> tuple[float, float]:
    """Return the 95 % interval of the median, by bootstrap."""
    found = sorted(median(draw.choices(values, k=len(values))) for _ in range(2000))
    return found[50], found[1949]


def table(rows: list[Row]) -> list[list[str]]:
    draw, lines = random.Random(3), list[list[str]]()
    about = (
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, vLLM 0.32 on 2 shared CPU cores, load average {os.getloadavg()[0]:.1f}"
    )
    for cold in (False, True):
        for offered in (False, True):
            of = [row for row in rows if (row["cold"], row["offered"]) == (cold, offered)]
            if not of:
                continue
            times = [row["ttft"] * 1000 for row in of]
            low, high = interval(times, draw)
            computed = median(row["computed"] for row in of)
            lines.append(
                [
                    "has forgotten the first turn" if cold else "served the first turn",
                    *("yes" if offered else "no", str(len(of))),
                    f"{computed:,.0f} of {median(row['prompt'] for row in of):,.0f}",
                    *(f"{median(times):.0f} ms", f"{low:.0f}–{high:.0f} ms"),
                    about,
                ]
            )
    return lines


async def run(options: argparse.Namespace, folder: Path) -> None:
    with ExitStack() as stack:
        prefill, decode = (stack.enter_context(vllm(options.python, folder, role)) for role in ROLES)
        model = options.python.parent.parent / "tiny-model"
        weir = stack.enter_context(router(folder, prefill, decode, model))
        async with httpx.AsyncClient(timeout=900) as client:
            lines = table(await measured(Pair(client, prefill, weir), options.conversations))
            for line in (COLUMNS, *lines):
                print("| " + " | ".join(line) + " |")
    if options.write:
        sheets.save("reuse", [list(COLUMNS), *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=224)
    parser.add_argument("--python", type=Path, default=CODE / ".engines/bin/python", help="of vLLM")
    parser.add_argument("--logs", type=Path, default=Path("bench/out"), help="folder of the engines' logs")
    parser.add_argument("--write", action="store_true", help="docs/findings/tables/reuse.csv")
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    asyncio.run(run(options, options.logs))


if __name__ == "__main__":
    main()
