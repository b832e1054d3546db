"""The exact index knows, to the block, what two adapters of one engine have cached of the same prompt."""

import asyncio

import httpx
import pytest

from fleet.tests.simengine.conftest import start
from router.app import Router
from router.http.server import HttpServer, listen
from router.standalone.file_source import FileSource

BLOCK = 16  # tokens
WORDS = "a question that is long enough to fill many blocks of the cache, once more; " * 60


@pytest.mark.slow
async def test_the_exact_index_separates_the_adapters_of_an_engine():
    sim = await asyncio.to_thread(start, max_loras=2)
    for name in ("one", "two"):
        answer = sim.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": f"org/{name}"})
        assert answer.text == f"Success: LoRA adapter '{name}' added successfully."
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    source = FileSource(f"{sim.url};events={sim.url};tokenizer=sim", None, "sim", "router-1")
    serving = HttpServer(Router(source), grace_s=1)
    await serving.start([listener])
    try:
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            await _until(client, "exact")
            for model in ("one", "one", "two", "two", "sim", "sim"):
                answer = await client.post("/v1/completions", json={"model": model, "prompt": WORDS, "max_tokens": 4})
                assert answer.json()["model"] == model
                await asyncio.sleep(0.5)  # the events of the blocks arrive
                receipt = (await client.get(f"/receipts/{answer.headers['x-request-id']}")).json()
                assert abs(receipt["predicted_cached"] - receipt["cached_tokens"]) <= BLOCK
                first = [one["model"] for one in (await client.get("/receipts")).json()["receipts"]].count(model) == 1
                assert (receipt["cached_tokens"] == 0) is first
                assert receipt["index"] == "exact"
    finally:
        await serving.stop()
        await asyncio.to_thread(sim.stop)


async def _until(client, index):
    for _ in range(200):
        health = (await client.get("/healthz")).json()["instances"][0]
        if health["state"] == "ready" and health["index"] == index:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(health)
