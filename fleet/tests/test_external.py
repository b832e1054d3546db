"""An engine that someone else started: watched and routed to, never launched, signalled or killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fleet import services
from fleet.kinds.external import is_engine_url
from fleet.kinds.servers import SERVERS
from fleet.models import Instance, Pool, State
from fleet.node import process as launch
from fleet.observe.identify import Identified
from fleet.observe.scrape import InstanceMemory, Scraper, _wire
from fleet.spec.fleet_spec import InvalidFleet, parse_fleet
from fleet.tests.world import STANDIN, World
from router.contract.redis.sample import EngineMetrics
from router.tests.ports import free_port


@pytest.fixture
def engine(tmp_path: Any) -> Iterator[tuple[int, str]]:
    """Return (pid, URL) of a process that Weir did not start."""
    port = free_port()
    process = subprocess.Popen([sys.executable, str(STANDIN), "--port", str(port), "--model", "m"])
    yield process.pid, f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def document(*urls: str, replicas: int = 1) -> dict[str, Any]:
    pool = {"name": "p", "model": "m", "kind": "external", "replicas": replicas, "engine": {"urls": list(urls)}}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "test"}, "spec": {"pools": [pool]}}


def is_alive(pid: int) -> bool:
    state = launch.inspect(pid)
    return state is not None and state.letter not in "ZX"


def test_an_external_engine_is_adopted_by_its_url_and_survives_its_pool(world: World, engine: tuple[int, str]) -> None:
    pid, url = engine
    services.apply_fleet(document(url), "ada")
    world.until_ready(1)
    row = world.one()
    assert (row.url, row.pid, row.command) == (url, None, [])
    assert world.published()["p-0"]["routable"]
    empty = {**document(url), "spec": {"pools": []}}
    services.apply_fleet(empty, "ada", prune=True)
    world.until(lambda: not Instance.objects.exists())
    assert is_alive(pid)


@pytest.mark.slow
def test_an_unreachable_external_engine_leaves_routing_and_is_not_killed(world: World, engine: tuple[int, str]) -> None:

    pid, url = engine
    services.apply_fleet(document(url), "ada")
    world.until_ready(1)
    os.kill(pid, signal.SIGSTOP)
    world.until(world.is_in(State.UNREACHABLE))
    assert not world.published()["p-0"]["routable"]
    world.age(3600)
    for _ in range(3):
        world.tick()
    assert world.one().state == State.UNREACHABLE
    os.kill(pid, signal.SIGCONT)
    world.until_ready(1)
    assert (world.one().epoch, world.one().restarts) == (1, 0)


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.7:8000", "http://engine.lan", "http://127.0.0.1:8000/", "http://[fd12::7]:8000", "http://cafe:1"],
)
def test_engines_live_on_private_addresses(url: str) -> None:
    assert parse_fleet(document(url)).pools[0].engine["urls"] == [url]


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret@10.0.0.7:8000", "http://@10.0.0.7", "http://10.0.0.7?x=1", "http://10.0.0.7/?", "http://10.0.0.7#a",
        "http://10.0.0.7:8000/v1", "ftp://10.0.0.7", "http://10.0.0.7:0", "http:// 10.0.0.7", "http://a\nb", "http://",
        "https://169.254.169.254",
        "http://169.254.169.254", "http://169.254.1.1:80", "http://[fe80::1]:8000", "http://[fe80::1%25eth0]:8000",
        "http://[::ffff:169.254.169.254]", "http://[fd00:ec2::254]", "http://100.100.100.200", "http://192.0.0.192",
        "http://metadata.google.internal", "http://METADATA.google.internal.", "http://2852039166", "http://0xa9fea9fe",
        "http://0xa9.254.43518", "http://0.0.0.0:8000", "http://[::]:8000", "http://224.0.0.1",
    ],
)  # fmt: skip
def test_other_urls_are_refused_with_the_rule(url: str) -> None:
    with pytest.raises(InvalidFleet) as refused:
        parse_fleet(document(url))
    (problem,) = refused.value.problems
    assert problem.path == "spec.pools[0].engine.urls"
    assert problem.message.startswith(
        "must be http://host:port or https://host:port, one per instance, without user info, query or link-local"
    )


def test_an_engine_may_have_a_path_that_is_not_the_api() -> None:
    assert is_engine_url("http://10.0.0.7:8000/team/llama")
    assert is_engine_url("https://10.0.0.7")
    for wrong in ("http://10.0.0.7:8000/v1", "http://10.0.0.7/a//b", "http://10.0.0.7/../x"):
        assert not is_engine_url(wrong)


def test_a_sample_reports_missing_prefix_caching_whichever_page_reported_it() -> None:
    row = Instance(name="p-0", epoch=1, pool=Pool(name="p"), wire={"uncached": True})
    scraper = Scraper()
    scraper._memory["p-0"] = InstanceMemory(1, 0.0)
    assert scraper._sample(row, EngineMetrics()).uncached
    row.wire = {}
    assert [scraper._sample(row, EngineMetrics(uncached=off)).uncached for off in (False, True)] == [False, True]
    scraper.close()


def test_missing_prefix_caching_is_kept_only_if_no_other_page_repeats_it() -> None:
    told = {name: _wire(Instance(), Identified(SERVERS[name], uncached=True)) for name in ("vllm", "sglang", "trtllm")}
    assert [name for name, wire in told.items() if wire.get("uncached")] == ["sglang"]
