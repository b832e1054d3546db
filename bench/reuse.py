"""What the blocks that a decoder holds are worth to the prefill of a session's next turn: two real vLLM, NIXL, CPU.

    make engines && .venv/bin/python -m bench.reuse [--conversations 224] [--running PREFILL DECODE] [--write]

Both engines run with vLLM's `bidirectional_kv_xfer`: the answer of a decoder then says where the blocks of its prompt
and reply are, and the next prefill request may offer them. Conversations go in batches of 14. Their first turns run
together; their second turns, which add 64 tokens, one after the other, half of them with the offer, in random order.
In every other batch the prefill engine has forgotten all it had cached, like one that did not serve the first turn.
Without Weir: requests are those of router/flows/nixl.py, with the offer added. The weights of the tiny model are so
small that answers hardly depend on the KV: they are not compared.
"""

import argparse
import asyncio
import datetime as dt
import json
import os
import random
import subprocess
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
from router.flows.nixl import HOLD
from router.tests.ports import free_ports

BATCH = 14
PROMPT, REPLY, ADDED = 800, 128, 64  # tokens
EXTRA = {"bidirectional_kv_xfer": True, "kv_recompute_threshold": 64, "decoder_kv_blocks_ttl": 120}
KV = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
START_S = 1200.0  # a busy machine
COLUMNS = ("prefill engine", "offered", "n", "tokens computed", "TTFT p50", "95 % interval", "measured")
OFFERED = (
    *("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"),
    *("dcp_size", "pp_size", "remote_num_tokens", "remote_blocks_expiry_time", "transfer_mode"),
)
Row = dict[str, Any]


@contextmanager
def vllm(python: Path, folder: Path, name: str) -> Iterator[str]:
    """Yield the engine's URL."""
    port, side = free_ports(2)
    words = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(python.parent.parent / "tiny-model")]
    words += ["--served-model-name", "tiny", "--load-format", "dummy", "--dtype", "float32", "--port", str(port)]
    words += ["--max-model-len", "16384", "--block-size", "32", "--enforce-eager", "--num-gpu-blocks-override", "16384"]
    words += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
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


@dataclass
class Conversation:
    prompt: list[int]
    offer: Row | None = None  # of the decoder's answer

    def next_turn(self, reply: list[int], draw: random.Random) -> None:
        self.prompt = [*self.prompt, *reply, *tokens(draw, ADDED)]


def tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(10, 500) for _ in range(count)]


class Pair:
    def __init__(self, client: httpx.AsyncClient, prefill: str, decode: str) -> None:
        self.client, self.prefill, self.decode = client, prefill, decode

    async def ready(self) -> None:
        end = time.monotonic() + START_S
        for url in (self.prefill, self.decode):
            while True:
                try:
                    if (await self.client.get(url + "/health")).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                if time.monotonic() > end:
                    raise SystemExit(f"{url} is not ready after {START_S:g} s")
                await asyncio.sleep(1)

    async def ask(self, url: str, prompt: list[int], most: int, params: Row | None = None) -> Row:
        body: Row = {"model": "tiny", "prompt": prompt, "max_tokens": most, "temperature": 0, "ignore_eos": True}
        body |= {"return_token_ids": True} | ({"kv_transfer_params": params} if params is not None else {})
        answer = await self.client.post(url + "/v1/completions", json=body)
        answer.raise_for_status()
        found: Row = answer.json()
        return found

    async def first_turn(self, talk: Conversation, draw: random.Random) -> None:
        held = await self.ask(self.prefill, talk.prompt, 1, dict(HOLD))
        answer = await self.ask(self.decode, talk.prompt, REPLY, held["kv_transfer_params"])
        said = answer["kv_transfer_params"] or {}
        talk.offer = {name: said[name] for name in OFFERED if name in said} if said.get("do_remote_decode") else None
        talk.next_turn(answer["choices"][0]["token_ids"], draw)

    async def second_turn(self, talk: Conversation, offer: Row | None) -> Row:
        began = time.perf_counter()
        held = await self.ask(self.prefill, talk.prompt, 1, dict(HOLD) | (offer or {}))
        first_s = await self._first(talk.prompt, held["kv_transfer_params"])
        used = held["usage"]
        cached = (used["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        return {
            "computed": used["prompt_tokens"] - cached,
            "prompt": used["prompt_tokens"],
            "ttft": first_s - began,
        }

    async def _first(self, prompt: list[int], params: Row) -> float:
        """Return when the decoder's first token came."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        more = {"stream": True, "kv_transfer_params": params}
        first = 0.0
        async with self.client.stream("POST", self.decode + "/v1/completions", json=body | more) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    first = first or time.perf_counter()
        return first

    async def forget(self) -> None:
        """Let the prefill engine forget what it has cached: it can once no decoder is to fetch any of it."""
        for _ in range(60):
            answer = await self.client.post(self.prefill + "/reset_prefix_cache")
            probe = await self.ask(self.prefill, list(range(10, 138)), 1)
            if answer.status_code == 200 and not (probe["usage"]["prompt_tokens_details"] or {}).get("cached_tokens"):
                return
            await asyncio.sleep(0.5)
        raise SystemExit("the prefill engine does not forget")


async def measured(pair: Pair, conversations: int) -> list[Row]:
    draw, rows = random.Random(), list[Row]()  # engines that run already know no prompt of an earlier run
    await pair.ready()
    await pair.first_turn(Conversation(tokens(draw, 100)), draw)  # a handshake
    for batch in range(conversations // BATCH):
        talks = [Conversation(tokens(draw, PROMPT)) for _ in range(BATCH)]
        await asyncio.gather(*(pair.first_turn(talk, draw) for talk in talks))
        cold = batch % 2 == 1
        if cold:
            await pair.forget()
        offers = [True, False] * (BATCH // 2)
        draw.shuffle(offers)
        for talk, offers_it in zip(talks, offers, strict=True):
            try:
                row = await pair.second_turn(talk, talk.offer if offers_it else None)
            except httpx.HTTPStatusError as error:  # as for blocks whose time to live is over
                print(batch, offers_it, cold, error.response.status_code, error.response.text[:200], flush=True)
                continue
            rows.append(row | {"cold": cold, "offered": offers_it and talk.offer is not None})
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
        names = ("prefill", "decode") if not options.running else ()
        urls = options.running or [stack.enter_context(vllm(options.python, folder, name)) for name in names]
        async with httpx.AsyncClient(timeout=900) as client:
            pair = Pair(client, *urls)
            rows = await measured(pair, options.conversations)
            lines = table(rows)
            for line in (COLUMNS, *lines):
                print("| " + " | ".join(line) + " |")
    if options.write:
        sheets.save("reuse", [list(COLUMNS), *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=224)
    parser.add_argument("--python", type=Path, default=CODE / ".engines/bin/python", help="of vLLM")
    parser.add_argument("--running", nargs=2, metavar="URL", help="prefill and decode engine, if they run already")
    parser.add_argument("--logs", type=Path, default=Path("bench/out"), help="folder of the engines' logs")
    parser.add_argument("--write", action="store_true", help="docs/findings/tables/reuse.csv")
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    asyncio.run(run(options, options.logs))


if __name__ == "__main__":
    main()
