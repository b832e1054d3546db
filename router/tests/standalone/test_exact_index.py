"""A standalone router in front of simulated engines that publish KV events and move KV as vLLM's NIXL does."""

import json
import subprocess
import sys

import httpx
import pytest

from router.policy.schema import document
from router.tests.standalone.test_alone import Alone

pytestmark = pytest.mark.slow

SIM = ("-m", "fleet.simengine", "--port", "0", "--model", "llama", "--time-scale", "50", "--kv", "nixl")
EVENTS = ("--events-port", "0", "--replay-port", "0")
LONG = "word " * 8000


@pytest.fixture
def engines():
    """Start two engines; return their URLs."""
    started = [subprocess.Popen([sys.executable, *SIM, *EVENTS], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    yield [f"http://{each.stdout.readline().split()[-1]}" for each in started]
    for each in started:
        each.kill()
        each.wait()
        each.stdout.close()


@pytest.fixture
def alone(engines, tmp_path):
    policy = tmp_path / "policy.json"
    small = {"classes.heavy_new_tokens": 6000}
    policy.write_text(json.dumps(document.apply_overrides(document.default("adaptive_offload"), small)))
    facts = ",".join(f"{url};connector=nixl;events={url};tokenizer=sim" for url in engines)
    router = Alone("--instances", facts, "--policy", policy)
    yield router
    router.process.kill()
    router.process.wait()
    router.log.close()


def all_exact(health):
    return {each["index"] for each in health["instances"]} == {"exact"}


async def test_a_standalone_router_offloads_long_prompts_and_follows_their_blocks_by_events(alone):
    await alone.ready(2)
    await alone.until(all_exact)
    async with httpx.AsyncClient(base_url=alone.url, timeout=60) as client:

        async def ask(name):
            body = {"model": "llama", "prompt": LONG, "max_tokens": 2, "user": name}
            answer = await client.post("/v1/completions", json=body, headers={"x-request-id": name})
            assert answer.status_code == 200
            return (await client.get(f"/receipts/{name}")).json()

        first = await ask("first")
        assert (first["class"], first["flow"], first["offload"]) == ("heavy", "offload_nixl", "ok")
        assert first["prefill_instance"] != first["instance"]
        for number in range(100):  # events arrive a moment later
            again = await ask(f"again-{number}")
            if again["predicted_cached"] == again["cached_tokens"]:
                break
        assert (again["index"], again["flow"]) == ("exact", "colocated")
        assert again["predicted_cached"] == again["cached_tokens"] > 9_000
