"""Under clients' requests, the prefill and decode instances of a running pool are each scaled by their own load."""

import re
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
import redis
from django.utils import timezone

from fleet import selectors, services
from fleet.control import autoscaler
from fleet.models import InstanceEvent, Pool
from fleet.plan import autoscale
from fleet.tests.clients import Clients
from fleet.tests.world import World
from router.tests.conftest import Published
from router.tests.ports import free_port

pytestmark = pytest.mark.slow
LONG, SHORT = "a word of it " * 2400, "hi"
SCALING = {
    "mode": "automatic", "max": 4, "prefill_max": 2, "decode_max": 2, "target_queue": 4,
    "up_after_s": 1, "down_after_s": 1, "cooldown_s": 0,
}  # fmt: skip
POOL = {
    "name": "p", "model": "llama", "kind": "sim", "replicas": 2, "autoscale": SCALING,
    "engine": {"kv": "neuron", "prefill_instances": 1, "max_num_seqs": 4, "seed": 1},
}  # fmt: skip


def clients(url: str, count: int, prompt: str, tokens: int) -> Clients[tuple[int, int]]:
    """Return (status, tokens) of the clients' answers."""
    asked = {"model": "llama", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}

    def ask(client: httpx.Client, _: str) -> tuple[int, int]:
        answer = client.post(f"{url}/v1/completions", json=asked)
        return answer.status_code, answer.json()["usage"]["completion_tokens"] if answer.status_code == 200 else 0

    return Clients(count, ask)


@pytest.fixture
def router_url(redis_url: str, live_redis: redis.Redis) -> Iterator[str]:
    Published(live_redis).policy("p", "round_robin_pd")
    port = free_port()
    words = ("--redis", redis_url, "--port", str(port))
    process = subprocess.Popen([sys.executable, "-m", "router", *words], stderr=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def serves(url: str) -> bool:
    try:
        return bool(httpx.get(f"{url}/healthz").json()["pools"]["p"]["ready"])
    except (httpx.TransportError, KeyError):
        return False


def shape() -> tuple[int, int]:
    """Return the numbers of ready prefill and decode instances after the next step of the control worker."""
    autoscaler.scale_step(timezone.now())
    ready = [one.facts.role for one in selectors.instances() if one.routable]
    return ready.count("prefill"), ready.count("decode")


def test_each_side_grows_and_shrinks_with_its_traffic_and_no_request_is_lost(
    world: World, router_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoscale, "EVERY_S", 0.3)  # advise at every step
    document = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "t"}, "spec": {"pools": [POOL]}}
    services.apply_fleet(document, "ada")
    world.until_ready(2)
    world.until(lambda: serves(router_url))
    with clients(router_url, 5, LONG, 40) as prompts:
        world.until(lambda: shape() == (2, 1))
    with clients(router_url, 12, SHORT, 60) as answers:
        world.until(lambda: shape() == (1, 2) and Pool.objects.get().instances.count() == 3)
    assert set(prompts.answers) == {(200, 40)}
    assert set(answers.answers) == {(200, 60)}
    told = {event.text: event.reason for event in InstanceEvent.objects.filter(kind="scale")}
    # The ratio depends on measured times of requests on each side, and so on the machine
    assert re.search(r"full while decoders wait: [2-9]P1D would be", told["scaled from 2 (1P1D) to 3 (2P1D)"])
    assert any("(2P" in before and "1P" in before.partition(" to ")[2] for before in told), "a prefill instance went"
    assert any("requests wait per instance, the target is 4" in why for why in told.values())
