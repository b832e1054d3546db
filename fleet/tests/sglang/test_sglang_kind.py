"""The kind `sglang`: the fleet starts, watches, calibrates, changes, puts to sleep and splits it by its own steps."""

import json
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fleet import services
from fleet.calibration import services as calibrations
from fleet.models import Calibration, Instance, InstanceEvent
from fleet.node import logs
from fleet.redis import connect
from fleet.tests.world import World
from router.contract.redis import redis_keys
from router.tests.values import loaded

PROMPT = "the quick brown fox " * 200  # 1,000 simulated tokens
Apply = Callable[..., None]


@pytest.fixture
def apply(world: World, tmp_path: Path) -> Apply:
    """Apply a pool of the kind, whose Python starts the stand-in."""
    python = tmp_path / "python"
    server = Path(__file__).with_name("server.py")
    python.write_text(f'#!/bin/sh\n[ "$1 $2" = "-m sglang.launch_server" ] || exec {sys.executable} "$@"\n'
                      f'shift 2\nexec {sys.executable} {server} "$@"\n')  # fmt: skip
    python.chmod(0o755)

    def applied(replicas: int = 1, **engine: Any) -> None:
        made = {"python": str(python), "context_length": 32_768, **engine}
        pool = {"name": "p", "model": "m", "kind": "sglang", "replicas": replicas, "engine": made}
        document = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "test"}, "spec": {"pools": [pool]}}
        services.apply_fleet(document, "ada")

    return applied


def sample(name: str = "p-0") -> dict[str, Any]:
    return loaded(connect().get(redis_keys.instance_key(name))) or {}


def ask(url: str, rank: int | None = None, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, **fields}
    lines = {"content-type": "application/json"} | ({"x-data-parallel-rank": str(rank)} if rank is not None else {})
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), lines)
    return dict(json.load(urllib.request.urlopen(request, timeout=30)))


def test_an_instance_starts_and_its_ranks_and_tiers_are_watched(world: World, apply: Apply) -> None:
    apply(tensor_parallel=2, data_parallel_size=2, hicache="dram", dram_gib=2)
    world.until_ready(1)
    published = world.published()["p-0"]
    assert (published["kind"], published["dp"], published["block_size"]) == (
        "sglang",
        {"ranks": 2, "together": "p-0"},
        16,
    )
    assert published["events"].startswith("tcp://127.0.0.1:")
    for rank in (0, 1, 1):
        ask(published["url"], rank=rank)
    world.until(lambda: sample().get("prompt_tokens_total") == 3000)
    seen = sample()
    assert {rank: one["prompt_tokens_total"] for rank, one in seen["ranks"].items()} == {"0": 1000, "1": 2000}
    assert seen["prefix_hits_total"] == 992  # the second prompt of rank 1 except its last block
    assert seen["kv_tiers"]["host"]["written_bytes_total"] > 0


def test_a_changed_option_is_rolled_out_one_instance_at_a_time(world: World, apply: Apply) -> None:
    apply(2)
    world.until_ready(2)
    apply(2, chunked_prefill_size=4096)
    fewest = [2]

    def changed() -> bool:
        fewest.append(sum(one["routable"] for one in world.published().values()))
        return {row.epoch for row in Instance.objects.all()} == {2} and fewest[-1] == 2

    world.until(changed)
    assert min(fewest) == 1
    assert "--chunked-prefill-size 4096" in " ".join(Path(f"/proc/{world.one().pid}/cmdline").read_text().split("\0"))


def test_an_instance_sleeps_wakes_with_new_weights_and_leaves_routing_while_paused(world: World, apply: Apply) -> None:
    apply(sleep_mode=True)
    world.until_ready(1)
    pid = world.one().pid
    for level in (1, 2):
        services.sleep("p-0", "ada", level=level)
        world.until(lambda level=level: world.one().asleep == level)
        services.wake("p-0", "ada")
        world.until_ready(1)
        assert ask(world.one().url)["usage"]["completion_tokens"] == 4
    assert world.one().pid == pid
    assert "weights of m" in logs.path_of("p-0").read_text()
    for path, ready in (("/pause_generation", (0, 1)), ("/continue_generation", (1, 1))):
        urllib.request.urlopen(urllib.request.Request(world.one().url + path, b"{}"), timeout=5).read()
        world.until(lambda ready=ready: bool(world.published()["p-0"]["routable"]) == bool(ready[0]))
    assert not InstanceEvent.objects.filter(kind="refused").exists()


def test_halves_meet_at_the_prefills_bootstrap_server(world: World, apply: Apply) -> None:
    apply(2, prefill_instances=1)
    world.until_ready(2)
    prefill, decode = (world.published()[name] for name in ("p-0", "p-1"))
    assert (prefill["role"], decode["role"]) == ("prefill", "decode")
    host, _, port = prefill["kv"]["bootstrap"].removeprefix("http://").partition(":")
    assert int(port) != int(prefill["url"].rpartition(":")[2])
    room = {"bootstrap_host": host, "bootstrap_port": int(port), "bootstrap_room": 7}
    with ThreadPoolExecutor(2) as both:
        asked = [both.submit(ask, one["url"], **room) for one in (prefill, decode)]
        answers = [one.result() for one in asked]
    assert answers[1]["usage"]["completion_tokens"] == 4


@pytest.mark.slow
def test_sglang_is_calibrated_like_any_other_engine(world: World, apply: Apply) -> None:
    apply(environment={"STANDIN_TIME_SCALE": "4"})
    world.until_ready(1)
    row = calibrations.ask_for("p-0", "ada", 30)
    assert calibrations.perform(row.pk), Calibration.objects.get(pk=row.pk).cause
    row.refresh_from_db()
    assert row.limits["max_num_seqs"] == 256
    assert row.constants["weights_s"] > 0
