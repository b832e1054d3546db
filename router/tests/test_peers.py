"""Two routers on one Redis know where the other has sent requests, and its requests in flight."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from router.contract.redis import redis_keys
from router.contract.redis.router_status import RouterLoad
from router.http.clients import ClientConnections
from router.metrics import render
from router.pool.load.pull import Pull
from router.request.request import NOT_READ
from router.serving.pools import Pools
from router.sync.peers import PENDING_HASHES, RouterPeers
from router.tests.conftest import running
from router.tests.engine import hang
from router.tests.values import stored

PROMPT = "The weir is a low dam across a river. " * 60
LLAMA = {"model": "llama"}


@pytest.fixture
async def two(world, redis_url):
    """Build router A in a world, with behaviours and a policy, and router B with its client."""
    async with AsyncExitStack() as stack:

        async def build(*behaviours, **policy):
            w = await world(*behaviours, **policy)
            other, client = await stack.enter_async_context(running(redis_url, "router-2"))
            await w.until(lambda: other.pools.get("demo") is not None and other.pools.get("demo").ready)
            await w.until(lambda: len(w.router.source.peers) == len(other.source.peers) == 1, "they have met")
            return w, other, client

        yield build


def chunks(router):
    pool = router.pools.get("demo")
    return {name: pool.index.chunks(name) for name in pool.endpoints}


@pytest.mark.slow
async def test_a_prompt_sent_by_one_router_is_in_the_index_of_the_other(two):
    w, other, _ = await two(None, None)
    await w.ask(prompt=PROMPT)
    await w.until(lambda: chunks(other) == chunks(w.router) and any(chunks(other).values()), "the same index")
    for router, result in ((w.router, "told"), (other, "heard")):
        page = render(router.source, ClientConnections()).decode()
        assert f'weir_router_exchanged_prompts_total{{result="{result}"}} 1.0' in page
        assert "weir_router_other_routers 1.0" in page


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False], ids=["named", "known by its prompt"])
async def test_a_session_stays_on_its_instance_whichever_router_it_reaches(two, named):
    w, other, client = await two(None, None, None, strategy="session_sticky")
    headers = {"x-session-id": "s"} if named else {}
    prompt = PROMPT
    home = (await w.ask(prompt=prompt, headers=headers)).headers["x-weir-instance"]
    for turn in range(1, 7):
        await w.until(lambda turn=turn: other.source.peers.taken + w.router.source.peers.taken == turn, "told")
        prompt += f"And then, in turn {turn}, " + "it carried more water than before. " * 20
        asked = client if turn % 2 else w.client
        answer = await asked.post("/v1/completions", json={**LLAMA, "prompt": prompt}, headers=headers)
        assert answer.headers["x-weir-instance"] == home


@pytest.mark.slow
async def test_a_request_in_flight_counts_at_the_other_router_until_it_ends(two):
    w, other, _ = await two(hang)
    asking = asyncio.ensure_future(w.ask())
    endpoint = other.pools.get("demo").endpoints["demo-0"]
    await w.until(lambda: endpoint.others[0] == 1)
    assert endpoint.others[1] > 0
    w.engines[0].release.set()
    await asking
    await w.until(lambda: endpoint.others == (0, 0, 0))


@pytest.mark.slow
async def test_a_pull_of_one_router_shares_the_link_in_the_decisions_of_the_other(two):
    w, other, _ = await two(None, None)
    here, there = (router.pools.get("demo").endpoints for router in (w.router, other))
    pull = Pull(here["demo-0"], here["demo-1"], 700)
    await w.until(lambda: there["demo-0"].view("").pulls == 1)
    assert Pull(there["demo-0"], there["demo-1"], 500).sharing == 2
    assert there["demo-1"].view("").pull_tokens == 500
    pull.over()
    await w.until(lambda: there["demo-0"].view("").pulls == 1)


@pytest.mark.slow
async def test_the_running_requests_of_a_silent_router_are_forgotten(two, live_redis):
    w, _, _ = await two(None)
    endpoint = w.router.pools.get("demo").endpoints["demo-0"]
    value = stored({"id": "router-3", "gone": False, "inflight": {"demo-0": [5, 700, 2]}})
    live_redis.xadd(redis_keys.LOADS, {"r": "router-3:1", "l": value})
    await w.until(lambda: endpoint.others == (5, 700, 2))
    await w.until(lambda: endpoint.others == (0, 0, 0), "it has not been heard of again")


@pytest.mark.slow
async def test_a_router_that_leaves_announces_it(two, live_redis):
    w, _, _ = await two(None)
    for gone in (False, True):
        value = stored({"id": "router-3", "gone": gone, "inflight": {}})
        live_redis.xadd(redis_keys.LOADS, {"r": "router-3:1", "l": value})
        await w.until(lambda gone=gone: len(w.router.source.peers) == (1 if gone else 2))


@pytest.mark.slow
async def test_a_starting_router_learns_the_prompts_sent_before(two, redis_url):
    w, other, _ = await two(None, None)
    await w.ask(prompt=PROMPT)
    await w.until(lambda: other.source.peers.taken == 1)
    async with running(redis_url, "router-3") as (fresh, _):
        await w.until(lambda: fresh.pools.get("demo") is not None and chunks(fresh) == chunks(w.router))


@pytest.mark.slow
async def test_an_unreadable_entry_is_ignored(two, live_redis):
    w, other, _ = await two(None)
    for fields in ({"r": "x"}, {"r": "x", "p": "{"}, {"r": "x", "p": stored({"sent": [["demo"]]})}):
        live_redis.xadd(redis_keys.SENT, fields)
    live_redis.xadd(redis_keys.LOADS, {"r": "x", "l": stored({"id": "router-3", "gone": False, "inflight": {"a": 7}})})
    await w.ask(prompt=PROMPT)
    await w.until(lambda: chunks(other) == chunks(w.router) and any(chunks(other).values()))


@pytest.mark.slow
async def test_a_prompt_for_an_earlier_epoch_of_an_instance_is_ignored(two, live_redis):
    w, other, _ = await two(None)
    packed = "AAAAAAAAAAE="
    old = [["demo", "demo-0", 0, None, packed], ["demo", "demo-9", 1, None, packed], ["gone", "x", 1, None, packed]]
    live_redis.xadd(redis_keys.SENT, {"r": "x", "p": stored({"sent": old})})
    await w.ask(prompt=PROMPT)
    await w.until(lambda: other.source.peers.taken == 1)
    assert chunks(other) == chunks(w.router)


async def test_a_single_router_publishes_no_prompts(world, live_redis):
    w = await world(None)
    await w.ask(prompt=PROMPT)
    await w.receipt(await w.ask(prompt=PROMPT))
    assert not live_redis.exists(redis_keys.SENT)


class Somewhere:
    id, epoch = "demo-0", 1


class Asked:
    session = "s"

    class pool:
        name = "demo"

    def __init__(self, chunks):
        self.request = replace(NOT_READ, chunks=chunks)


async def test_prompts_that_cannot_be_published_are_bounded():
    peers = RouterPeers(None, Pools(), "router-1")
    peers._others.take(RouterLoad(id="router-2"), time.monotonic())
    half = list(range(PENDING_HASHES // 2))
    for _ in range(5):
        peers.sent(Asked(half), Somewhere)
    assert (len(peers._pending), peers.untold) == (2, 3)
