"""A real vLLM on a GPU behind Weir: calibrated by a sweep, then under loads that the sweep did not send.

    .venv/bin/python -m bench.gpu.engine --python PYTHON --model Llama-3.1-8B --out FILE [--seconds 60] [--rates 4 12]
                                         [--gpu h100_sxm] [--option NAME=VALUE ...] [--sleep] [--recall]

PYTHON: the interpreter of vLLM's environment. Weir starts with one pool of one engine, whose weights are generated
(`--load-format dummy`) and whose prompts are random text: only times are real. Then, each through the router:
Poisson arrivals at each of the rates (requests/s), and sessions of several turns behind one system prompt. FILE gets
the points of the sweep, the engine's own settings, each request as its client measured it and its receipt records
it, and the use of the GPU every 5 s; `bench.gpu.compare` holds the twin against it, without a GPU.
`--sleep`: also puts the engine to sleep and wakes it. `--recall`: sends prompts, others until these are gone from the
GPU, and the first ones again; with `--option kv=offload-dram` they come back from the host's memory.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from bench.gpu.models import CONFIGS
from controlplane.tests import real_up
from controlplane.tests.engines.fleet import Fleet
from controlplane.tests.engines.load import tokens_per_word
from fleet.calibration.plan import prompt
from fleet.calibration.streamed_request import TokenTimes, stream_completion

CODE = Path(__file__).resolve().parents[2]
POOL = "gpu"
NAME = f"{POOL}-0"
LENGTHS = (120, 350, 800, 1_500, 3_000, 6_000)  # prompt tokens; a sweep sends none of these lengths
ANSWERS = (32, 256)  # fewest and most answer tokens
SESSIONS, TURNS, SYSTEM, TURN = 16, 5, 1_500, 250  # load of sessions; lengths in tokens
PAUSE_S = 2.0  # mean pause between a session's turns
USE_EACH_S = 5.0
STARTED_S = 420.0  # longest start
PAGE_S = 10.0  # span of receipts that are read at once
RECALLED, RECALL = 8, 6_000  # number of prompts, and their tokens


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as its client saw it; seconds since the load began."""

    at_s: float
    session: str
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--model", required=True, choices=list(CONFIGS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpu", default="h100_sxm")
    parser.add_argument("--calibrate", type=float, default=60.0, metavar="S")
    parser.add_argument("--seconds", type=float, default=45.0, help="of each load")
    parser.add_argument("--rates", type=float, nargs="*", default=[4.0, 12.0], help="requests/s")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the kind vllm")
    parser.add_argument("--argument", action="append", default=[], help="of vLLM's server")
    parser.add_argument("--sleep", action="store_true")
    parser.add_argument("--recall", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    found: dict[str, Any] = {"model": options.model, "gpu": options.gpu, "at": time.time(), "loads": []}
    with tempfile.TemporaryDirectory(prefix="weir-gpu-", dir="/tmp") as folder, running(Path(folder), options) as fleet:
        try:
            found["ready_s"] = until_ready(fleet)
            say(began, f"ready after {found['ready_s']:.0f} s")
            measure(fleet, options, found, lambda text: say(began, text))
        finally:
            found["events"] = quietly(lambda: fleet.rest("GET", f"/instances/{NAME}/events")[0])
            found["router"] = quietly(lambda: httpx.get(f"http://127.0.0.1:{fleet.weir.router_port}/healthz").json())
            found["log"] = quietly(lambda: log_of(fleet))
            options.out.write_text(json.dumps(found))


def say(began: float, text: str) -> None:
    print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)


def measure(fleet: Fleet, options: argparse.Namespace, found: dict[str, Any], tell: Callable[[str], None]) -> None:
    url = f"http://127.0.0.1:{fleet.weir.router_port}"
    found["engine"] = fleet.one(NAME)
    found["nodes"] = quietly(lambda: fleet.rest("GET", "/nodes")[0])
    words = 1 / tokens_per_word(url, options.model)
    if options.calibrate:
        last = fleet.calibrated(NAME, options.calibrate)
        found["calibration"] = {"last": last}
        tell(f"calibrated: {last['status']} {last.get('cause', '')}")
    draw = random.Random(1)
    loads = [(f"{rate:g} requests/s", arrivals(rate, options.seconds, draw)) for rate in options.rates]
    for name, load in loads:
        found["loads"].append(played(fleet, name, lambda load=load: play(url, options.model, load, words)))
        tell(f"{name}: {means(found['loads'][-1]['sent'])}")
    found["loads"].append(played(fleet, "sessions", lambda: hold(url, options.model, words)))
    tell(f"sessions: {means(found['loads'][-1]['sent'])}")
    found["metrics"] = httpx.get(found["engine"]["url"] + "/metrics", timeout=30).text
    if options.recall:
        found["recall"] = recall(fleet, url, options.model, words)
        tell(f"recall: {found['recall']}")
    if options.sleep:
        found["sleep"] = sleep_and_wake(fleet, url, options.model)
        tell(f"sleep: {found['sleep']}")


@contextmanager
def running(folder: Path, options: argparse.Namespace) -> Iterator[Fleet]:
    model = folder / "model"
    (folder / "config.json").write_text(json.dumps(CONFIGS[options.model]))
    subprocess.run(
        [options.python, str(CODE / "examples/tiny_model.py"), str(model), str(folder / "config.json")],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    document = folder / "fleet.yaml"
    document.write_text(yaml.safe_dump(fleet_document(options, model)))
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    with real_up.running("--no-demo", "--fleet", str(document), WEIR_ADMIN_PASSWORD="bench-of-a-gpu-1", **kept) as weir:
        weir.wait_for("Weir is up", 120)
        yield Fleet(weir)


def fleet_document(options: argparse.Namespace, model: Path) -> dict[str, Any]:
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "CUDA_HOME") if name in os.environ}
    engine: dict[str, Any] = {
        "python": options.python,
        "model": str(model),
        "load_format": "dummy",
        "max_model_len": 20_480,
        "block_size": 16,
        "arguments": options.argument,
        "environment": kept | {"HF_HUB_OFFLINE": "1"},
    }
    for text in options.option:
        name, _, value = text.partition("=")
        engine[name] = yaml.safe_load(value)
    pool = {"name": POOL, "model": options.model, "kind": "vllm", "replicas": 1, "engine": engine}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "gpu"}, "spec": {"pools": [pool]}}


def until_ready(fleet: Fleet) -> float:
    def ready() -> bool:
        row = fleet.instances().get(NAME, {"state": "none"})
        assert row["state"] != "failed", f"{row['reason']}\n{log_of(fleet)[-3000:]}"
        return row["state"] == "ready"

    return fleet.until(ready, "the engine", STARTED_S)


def log_of(fleet: Fleet) -> str:
    logs = sorted(fleet.weir.folder.rglob(f"{NAME}*.log"))
    return "\n".join(path.read_text(errors="replace")[-20_000:] for path in logs)


def quietly(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (AssertionError, OSError, ValueError) as error:
        return repr(error)


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    prompt_tokens: int
    output_tokens: int


def arrivals(rate: float, seconds: float, draw: random.Random) -> list[Arrival]:
    at, made = draw.expovariate(rate), []
    while at < seconds:
        made.append(Arrival(at, draw.choice(LENGTHS), draw.randint(*ANSWERS)))
        at += draw.expovariate(rate)
    return made


def played(fleet: Fleet, name: str, load: Callable[[], Any]) -> dict[str, Any]:
    """Play a load; return it with its receipts and the use of the GPU."""
    since = time.time()
    sent, use = asyncio.run(with_use(load()))
    time.sleep(2.0)  # receipts are written in slices
    rows = receipts(fleet, since)
    kept = ("request_id", "at", "actual_prompt_tokens", "prompt_tokens", "cached_tokens", "predicted_cached", "index")
    kept += ("output_tokens", "queue_ms", "ttft_ms", "tpot_ms", "outcome", "session", "cached_tiers", "predicted_tiers")
    told = [{key: one.get(key) for key in kept} for one in rows]
    return {"name": name, "since": since, "sent": list(map(asdict, sent)), "receipts": told, "gpu": use}


def receipts(fleet: Fleet, since: float) -> list[dict[str, Any]]:
    """Return all receipts since then, by arrival, in pages of a stretch of time, as the list is in the order of their
    ends."""
    found: list[dict[str, Any]] = []
    while since < time.time():
        page = fleet.rest("GET", f"/receipts?limit=500&since={since}&until={since + PAGE_S}")[0]["receipts"]
        found += sorted(page, key=lambda one: float(one["at"]))
        since += PAGE_S
    return found


async def with_use(load: Any) -> tuple[list[Sent], list[dict[str, Any]]]:
    use: list[dict[str, Any]] = []

    async def watch() -> None:
        fields = "utilization.gpu,memory.used,power.draw,clocks.sm"
        while True:
            await asyncio.sleep(USE_EACH_S)
            try:
                asked = await asyncio.create_subprocess_exec(
                    "nvidia-smi",
                    f"--query-gpu={fields}",
                    "--format=csv,noheader,nounits",
                    stdout=asyncio.subprocess.PIPE,
                )
            except OSError:
                return
            said, _ = await asked.communicate()
            use.append(dict(zip(fields.split(","), said.decode().strip().split(", "), strict=False)))

    watching = asyncio.create_task(watch())
    try:
        return await load, use
    finally:
        watching.cancel()


CONNECTIONS = httpx.Limits(max_connections=None)


async def play(url: str, model: str, load: Sequence[Arrival], words: float) -> list[Sent]:
    texts = [prompt(random.Random(), round(one.prompt_tokens * words)) for one in load]  # before the first request
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=CONNECTIONS) as client:
        began = time.monotonic()

        async def one(arrival: Arrival, text: str) -> Sent:
            await asyncio.sleep(max(0.0, began + arrival.at_s - time.monotonic()))
            return sent(await stream_completion(client, model, text, arrival.output_tokens), began, "")

        return await asyncio.gather(*map(one, load, texts))


async def hold(url: str, model: str, words: float) -> list[Sent]:
    """Play sessions: a shared system prompt, then turns that repeat the conversation so far."""
    draw = random.Random(2)
    system = prompt(draw, round(SYSTEM * words))
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=CONNECTIONS) as client:
        began = time.monotonic()

        async def session(number: int) -> list[Sent]:
            text, taken, own = system, [], random.Random(number)
            for _ in range(TURNS):
                await asyncio.sleep(own.expovariate(1 / PAUSE_S))
                text += " " + prompt(own, round(TURN * words))
                answer = await stream_completion(client, model, text, own.randint(*ANSWERS))
                taken.append(sent(answer, began, str(number)))
            return taken

        return [one for taken in await asyncio.gather(*map(session, range(SESSIONS))) for one in taken]


def sent(answer: TokenTimes, began: float, session: str) -> Sent:
    (begin, first), (end, last) = answer.marks[0], answer.marks[-1]
    tpot_s = (end - begin) / (last - first) if last > first else 0.0
    return Sent(answer.sent_at - began, session, answer.prompt_tokens, last, answer.ttft_s, tpot_s)


def means(rows: Sequence[dict[str, Any]]) -> str:
    ttft, tpot = (sum(one[key] for one in rows) / max(len(rows), 1) * 1e3 for key in ("ttft_s", "tpot_s"))
    return f"n {len(rows)}, mean TTFT {ttft:.1f} ms, TPOT {tpot:.2f} ms"


def recall(fleet: Fleet, url: str, model: str, words: float) -> dict[str, Any]:
    """Return the mean TTFT of prompts that are new, held by the GPU, and evicted from it."""
    kv_tokens = kv_tokens_of(fleet)
    texts = [prompt(random.Random(100 + number), round(RECALL * words)) for number in range(RECALLED)]
    others = [prompt(random.Random(500 + number), round(RECALL * words)) for number in range(2 + kv_tokens // RECALL)]

    async def asked(some: Sequence[str]) -> list[float]:
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            return [(await stream_completion(client, model, text, 8)).ttft_s for text in some]

    async def all_of() -> dict[str, Any]:
        new, held = await asked(texts), await asked(texts)
        await asked(others)
        gone = await asked(texts)
        return {"kv_tokens": kv_tokens, "prompt": RECALL, "new_s": new, "held_s": held, "gone_s": gone}

    since = time.time()
    found = asyncio.run(all_of())
    time.sleep(2.0)
    last = receipts(fleet, since)[-RECALLED:]
    found["gone_cached"] = [one["cached_tokens"] for one in last]
    found["gone_tiers"] = [one.get("cached_tiers") for one in last]
    found["gone_predicted"] = [(one["predicted_cached"], one.get("predicted_tiers")) for one in last]
    return found


def kv_tokens_of(fleet: Fleet) -> int:
    import re

    page = httpx.get(fleet.one(NAME)["url"] + "/metrics", timeout=30).text
    info = re.search(r"vllm:cache_config_info\{[^}]*\}", page)
    assert info, "the engine does not report its KV blocks"
    blocks, size = (int(re.search(rf'{key}="(\d+)"', info[0])[1]) for key in ("num_gpu_blocks", "block_size"))  # type: ignore[index]
    return blocks * size


def sleep_and_wake(fleet: Fleet, url: str, model: str) -> dict[str, float | str]:
    def memory() -> str:
        asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()

    def until(text: str) -> float:
        return fleet.until(lambda: text in f"{fleet.one(NAME)['state']}: {fleet.one(NAME)['reason']}", text, 120)

    awake_mib = memory()
    fleet.rest("POST", f"/instances/{NAME}/sleep", {"reason": "bench of a GPU"})
    slept_s = until("asleep")
    time.sleep(2.0)
    asleep_mib = memory()
    fleet.rest("POST", f"/instances/{NAME}/wake", {"reason": "bench of a GPU"})
    woke_s = until("ready: ")
    answer = 1 / tokens_per_word(url, model)
    return {
        "awake_mib": awake_mib,
        "slept_s": slept_s,
        "asleep_mib": asleep_mib,
        "woke_s": woke_s,
        "awake_again_mib": memory(),
        "answers": answer,
    }


if __name__ == "__main__":
    main()
