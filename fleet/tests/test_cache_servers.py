"""LMCache in its own process beside an adopted engine: its figures are shown with the engine's."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fleet.kinds.servers import VLLM
from fleet.models import Instance, Pool
from fleet.observe.engine_pages import EnginePages
from router.contract.redis.sample import EngineMetrics

pytestmark = pytest.mark.django_db
KEY = "env:WEIR_TEST_ENGINE_KEY"


class Pages(ThreadingHTTPServer):
    def __init__(self, page: bytes, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.page, self.status, self.keys = page, status, list[str | None]()


class Answering(BaseHTTPRequestHandler):
    server: Pages

    def do_GET(self) -> None:
        self.server.keys.append(self.headers["authorization"])
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(self.server.page)))
        self.end_headers()
        self.wfile.write(self.server.page)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Pages]:
    yield from served(b"vllm:num_requests_running 3")


@pytest.fixture
def cache() -> Iterator[Pages]:
    yield from served(b"lmcache_mp_l1_memory_usage_bytes 5e+09")


def served(page: bytes) -> Iterator[Pages]:
    with Pages(page) as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def metrics(engine: Pages, lmcache: str) -> tuple[EngineMetrics | None, Counter[str]]:
    pool = Pool(name="chat", model="m", kind="external", engine={"lmcache": lmcache, "engine_key": KEY})
    row = Instance(pool=pool, name="chat-0", url=f"http://127.0.0.1:{engine.server_port}")
    refused = Counter[str]()
    return asyncio.run(EnginePages().metrics(row, VLLM, 5.0, refused)), refused


def test_the_cache_servers_figures_are_shown_with_the_engines_and_it_receives_no_key(
    engine: Pages, cache: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY.removeprefix("env:"), "secret")
    found, refused = metrics(engine, f"http://{{host}}:{cache.server_port}/")
    assert found is not None
    assert (found.running, found.kv_tiers["host"].used_bytes, refused) == (3, 5e9, Counter())
    assert found.kv_tiers["host"].page == f"http://127.0.0.1:{cache.server_port}/metrics"
    assert (engine.keys, cache.keys) == (["Bearer secret"], [None])


def test_a_tier_of_the_engine_itself_has_no_page_of_another_server(engine: Pages, cache: Pages) -> None:
    engine.page += b'\nvllm:kv_offload_store_bytes_total 7\nvllm:kv_offload_tiering_write_bytes_total{tier="fs"} 9'
    cache.page += b"\nlmcache_mp_l2_usage_bytes 6"
    found, _ = metrics(engine, f"http://{{host}}:{cache.server_port}")
    assert found is not None
    assert {name: bool(tier.page) for name, tier in found.kv_tiers.items()} == {
        "host": False,
        "disk": False,
        "remote": True,
    }


def test_without_a_cache_server_the_engine_is_shown_unchanged(engine: Pages, cache: Pages) -> None:
    cache.status = 500
    for where, why in ((cache.server_port, "/metrics answers 500"), (1, "Connect call failed")):
        found, refused = metrics(engine, f"http://{{host}}:{where}")
        assert found is not None
        assert (found.running, found.kv_tiers) == (3, {})
        assert [why in each for each in refused if each.startswith("LMCache: GET http://127.0.0.1")] == [True]
