"""Engines under a path prefix, and routers behind a proxy that adds one."""

import pytest
from msgspec import convert

from router.contract.net.addresses import is_base_path
from router.contract.redis.published import PublishedInstance
from router.http.doors import below
from router.picker.picking import unreached
from router.pool.endpoint import Endpoint
from router.tests.conftest import entry
from router.tests.engine import ANSWER, reply
from router.tests.test_stored import stores
from router.upstream.fetch import get
from router.upstream.rank_numbering import counts_group
from router.workers.own_request import ask

BASE = "/team/llama"


@pytest.fixture
async def based(world):
    w = await world(reply(ANSWER), failure__retries=0)
    w.published.fleet(entry("demo-0", w.engines[0].url + BASE))
    pool = w.router.pools.get("demo")
    await w.until(lambda: any(one.upstream.base for one in pool.endpoints.values()), "the base")
    return w


async def test_every_request_to_an_engine_under_a_path_uses_the_path(based):
    made, endpoint = based.engines[0], based.router.pools.get("demo").endpoints["demo-0"]
    assert (await based.ask("/v1/chat/completions?a=1", messages=[])).status_code == 200
    await ask(endpoint, "/v1/completions", b"{}", 5.0, 1000)
    await get(endpoint.upstream.url, "/kv_event_sources", 5.0, 1000)
    await counts_group(endpoint.upstream, "llama", 3)
    assert [one.target for one in made.received] == [
        f"{BASE}/v1/chat/completions?a=1",
        f"{BASE}/v1/completions",
        f"{BASE}/kv_event_sources",
        f"{BASE}/v1/completions",
    ]


async def test_a_stored_response_is_read_under_the_path(based):
    answer = stores()

    async def behave(engine, request, writer):
        request.target = request.target.removeprefix(BASE)
        await answer(engine, request, writer)

    based.engines[0].behaviour = behave
    made = (await based.ask("/v1/responses", input="x")).json()
    assert (await based.client.get(f"/v1/responses/{made['id']}")).json()["id"] == made["id"]


def test_a_gateway_is_given_no_instance_under_a_path():
    of = {"a": entry("a", "http://10.0.0.1:8000"), "b": entry("b", "http://10.0.0.2:8000/b")}

    class Pool:
        endpoints = {name: Endpoint(convert(one, PublishedInstance)) for name, one in of.items()}

    assert unreached(Pool, None) == {"b": "its URL has a path, which gateways do not put before those of requests"}


@pytest.mark.parametrize("path", ["", "/", "/llm", "/a/b-1/c.d~_/", "/v1/llm", "/v11"])
def test_a_base_path_consists_of_plain_segments(path):
    assert is_base_path(path)


@pytest.mark.parametrize("path", ["/v1", "/llm/v1/", "//", "/a//b", "/..", "/a/../b", "/a b", "/ü", "/a?b", "/a" * 9])
def test_neither_a_router_path_nor_an_api_path_may_be_a_base_path(path):
    assert not is_base_path(path)


async def test_a_router_serves_with_and_without_the_prefix_that_a_proxy_keeps(world):
    w = await world(None)
    w.router.root = "/llm"
    for path in ("/llm/v1/completions", "/v1/completions"):
        assert (await w.ask(path)).status_code == 200
    assert {one.target for one in w.engines[0].received} == {"/v1/completions"}
    assert (await w.client.get("/llm/healthz")).json()["id"] == "router-1"
    assert (await w.ask("/llmv1/completions")).status_code == (await w.ask("/llm")).status_code == 404
    moved = await w.client.get("/llm/v1/models/", follow_redirects=True)
    assert (moved.url.path, moved.status_code) == ("/llm/v1/models", 200)


def test_a_path_outside_the_root_is_unchanged():
    assert below("/llm", "/llm/a") == "/a"
    for path in ("/llm", "/llma", "/a/llm/b"):
        assert below("/llm", path) == path
    assert below("", "/a") == "/a"
