"""Data-parallel ranks behind one address: each is an endpoint, but they share a connection pool and a breaker."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from router.contract.metrics.engine_metrics import VLLM_SCRAPE, parse_metrics
from router.contract.redis import codec, redis_keys
from router.contract.redis.router_status import RouterLoad, RouterStatus, SentPrompt, SentPrompts
from router.contract.redis.sample import InstanceSample, RankSample
from router.pool.health.stall_watch import look, stalled
from router.pool.pool import Pool
from router.tests.conftest import World, entry, fleet, instance
from router.tests.engine import Engine, Received, Writer, reply

HEADER = "x-data-parallel-rank"
OUT_OF_RANGE = "data_parallel_rank {rank} is out of range [0, {ranks})."
SGLANG_OUT_OF_RANGE = "routed_dp_rank=0 out of range [0, 0)"
ANSWER = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'


def counting(ranks: int, first: int = 0) -> Callable[[Engine, Received, Writer], Any]:
    """An engine whose front end knows the ranks from `first` to `first + ranks - 1`."""

    async def behaviour(engine: Engine, request: Received, writer: Writer) -> None:
        rank = request.headers.get(HEADER)
        if rank is not None and not first <= int(rank) < first + ranks:
            text = OUT_OF_RANGE.format(rank=rank, ranks=ranks)
            await reply({"error": {"message": text, "type": "BadRequestError", "code": 400}}, status=400)(
                engine, request, writer
            )
        else:
            await reply({"choices": [{"index": 0, "text": "w"}], "usage": {"prompt_tokens": 2}})(
                engine, request, writer
            )

    return behaviour


async def with_ranks(world: Callable[..., Any], behaviour: Any, ranks: int = 4, **changes: Any) -> World:
    made: World = await world(behaviour)
    dp = {"ranks": ranks, **changes}
    made.published.fleet(entry("demo-0", made.engines[0].url, dp=dp))
    await made.until(lambda: len(pool_of(made).endpoints) == ranks)
    return made


def pool_of(world: World) -> Pool:
    pool = world.router.pools.get("demo")
    assert pool is not None
    return pool


def ranks_sent(engine: Engine) -> list[str | None]:
    return [request.headers.get(HEADER) for request in engine.received if request.method == "POST"]


async def test_requests_name_the_chosen_rank(world: Callable[..., Any]) -> None:
    made = await with_ranks(world, counting(4))
    responses = [await made.ask(headers={HEADER: "77"}) for _ in range(4)]
    assert [response.headers["x-weir-instance"] for response in responses] == [f"demo-0#{rank}" for rank in range(4)]
    assert ranks_sent(made.engines[0]) == ["0", "1", "2", "3"]
    receipt = await made.receipt(responses[2])
    assert (receipt["instance"], receipt["candidates"]["id"][:2]) == ("demo-0#2", ["demo-0#0", "demo-0#1"])
    assert made.engines[0].accepted == 1  # a single connection


async def test_an_instance_with_one_rank_gets_no_header(world: Callable[..., Any]) -> None:
    made = await world(counting(1))
    response = await made.ask(headers={HEADER: "0"})
    assert (response.headers["x-weir-instance"], ranks_sent(made.engines[0])) == ("demo-0", [None])


async def test_a_rank_that_the_engine_refuses_is_reported_and_the_engine_chooses(world: Callable[..., Any]) -> None:
    made = await with_ranks(world, counting(2))
    for _ in range(8):
        assert (await made.ask()).status_code == 200
    assert ranks_sent(made.engines[0]) == ["0", "1", "2", None, "3", None, "0", "1", None, None]
    why = "data_parallel_rank 3 is out of range [0, 2)"
    assert any(why in reason for reason in (await made.client.get("/healthz")).json()["degraded"])
    page = (await made.client.get("/metrics")).text
    assert 'weir_router_rank_refusals_total{instance="demo-0",pool="demo",rank="3"} 1.0' in page
    assert 'weir_router_rank_refusals_total{instance="demo-0",pool="demo",rank="1"} 0.0' in page


async def test_other_errors_are_not_blamed_on_the_rank(world: Callable[..., Any]) -> None:
    made = await with_ranks(world, reply({"error": {"message": "max_tokens must be positive"}}, status=400))
    assert (await made.ask()).status_code == 400
    assert ranks_sent(made.engines[0]) == ["0"]


async def test_a_stream_may_refuse_the_rank_in_its_first_event(world: Callable[..., Any]) -> None:
    async def behaviour(engine: Engine, request: Received, writer: Writer) -> None:
        text = ANSWER
        if HEADER in request.headers:
            text = f"data: {json.dumps({'error': {'message': SGLANG_OUT_OF_RANGE}})}\n\n"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(text)}\r\n\r\n"
        writer.write((head + text).encode())
        await writer.drain()

    made = await with_ranks(world, behaviour)
    response = await made.ask(stream=True)
    assert (response.text, ranks_sent(made.engines[0])) == (ANSWER, ["0", None])


@pytest.mark.parametrize(("numbers", "sent"), [(0, ["0", "1"]), (4, ["4", "5"])])
async def test_a_router_asks_an_engine_how_it_numbers_the_ranks_of_its_group(
    world: Callable[..., Any], numbers: int, sent: list[str]
) -> None:
    """In the second instance of a group of 8, a local front end knows 0 to 3 and a global one 4 to 7."""
    made = await with_ranks(world, counting(4, first=numbers), first=4)
    pool = pool_of(made)
    assert list(pool.endpoints) == [f"demo-0#{rank}" for rank in range(4, 8)]
    await made.until(lambda: all(endpoint.rank_line for endpoint in pool.endpoints.values()))
    assert ranks_sent(made.engines[0]) == ["7"]  # a single probe
    for _ in range(2):
        assert (await made.ask()).status_code == 200
    assert ranks_sent(made.engines[0])[1:] == sent


async def test_until_an_engine_has_reported_its_numbering_it_chooses_the_rank(world: Callable[..., Any]) -> None:
    made = await with_ranks(world, reply({"error": "not now"}, status=503), first=4)
    pool = pool_of(made)
    await made.until(lambda: pool.endpoints["demo-0#4"].ranks.trouble)
    made.engines[0].behaviour = reply({"choices": [{"index": 0, "text": "w"}]})
    assert (await made.ask()).status_code == 200
    assert ranks_sent(made.engines[0])[-1] is None
    assert "has not said how it counts its ranks" in (await made.client.get("/healthz")).text


async def test_all_ranks_of_an_engine_leave_with_it(world: Callable[..., Any]) -> None:
    made = await world(counting(2), counting(1), failure__breaker_failures=1)
    gone, other = made.engines
    made.published.fleet(entry("demo-0", "http://127.0.0.1:1", dp={"ranks": 2}), entry("demo-1", other.url))
    await made.until(lambda: len(pool_of(made).endpoints) == 3)
    receipt = await made.receipt(await made.ask())
    assert [attempt["instance"] for attempt in receipt["attempts"]] == ["demo-0#0", "demo-1"]
    for _ in range(3):
        assert (await made.ask()).headers["x-weir-instance"] == "demo-1"
    assert {one.breaker.state for one in pool_of(made).endpoints_of("demo-0")} == {"open"}
    assert not gone.received


def ranked(name: str = "demo-0", ranks: int = 2, **dp: Any) -> Pool:
    pool = Pool("demo")
    pool.take_fleet(fleet(instance(name, "http://127.0.0.1:1", dp={"ranks": ranks, **dp})))
    return pool


def test_an_instance_counts_once_however_many_ranks_it_has() -> None:
    assert (ranked(ranks=8).ready, len(ranked(ranks=8).endpoints)) == (1, 8)


def test_ranks_stay_as_long_as_their_process_does() -> None:
    pool = ranked()
    before = dict(pool.endpoints)
    pool.take_fleet(fleet(instance("demo-0", "http://127.0.0.1:1", dp={"ranks": 2}, state="draining", routable=False)))
    assert pool.endpoints == before
    assert {one.state for one in pool.endpoints.values()} == {"draining"}
    pool.take_fleet(fleet(instance("demo-0", "http://127.0.0.1:1", dp={"ranks": 2}, epoch=2)))
    assert list(pool.endpoints) == list(before)
    assert not {*pool.endpoints.values()} & {*before.values()}


def test_each_rank_has_its_own_sample() -> None:
    pool = ranked()
    ranks = {
        "0": RankSample(kv_usage=0.25, waiting=1.0),
        "1": RankSample(kv_usage=0.75, waiting=5.0, deferred=2.0),  # two of the five are deferred
    }
    sample = InstanceSample(id="demo-0", epoch=1, at=10.0, kv_usage=0.5, waiting=4.0, kv_blocks=100, ranks=ranks)
    for endpoint in pool.endpoints.values():
        endpoint.take_sample(sample, 10.0)
    assert [(one.kv_usage, one.waiting) for one in pool.endpoints.values()] == [(0.25, 1), (0.75, 3)]


def of_ranks(at: float, *totals: float | None) -> InstanceSample:
    """Build an engine of several ranks, the first of which holds requests."""
    ranks = {
        str(rank): RankSample(running=float(not rank), generation_tokens_total=total)
        for rank, total in enumerate(totals)
    }
    return InstanceSample(id="demo-0", epoch=1, at=at, running=1.0, generation_tokens_total=at, ranks=ranks)


@pytest.mark.parametrize(("tells", "out"), [(True, [True, False]), (False, [False, False])])
def test_a_rank_stalls_alone_if_its_node_reports_tokens_by_rank(tells: bool, out: list[bool]) -> None:
    pool = ranked()
    for endpoint in pool.endpoints.values():
        endpoint.progress.came()
    for second in range(1, 30):
        sample = of_ranks(float(second), *((5.0, 9.0 + second) if tells else (None, None)))
        for endpoint in pool.endpoints.values():
            endpoint.take_sample(sample, float(second))
        look(pool, float(second), 1.0)
    assert [bool(one.progress.stalled) for one in pool.endpoints.values()] == out
    assert (stalled([pool]), pool.ready) == ([], 1)


def test_an_instance_is_stalled_when_all_its_ranks_are() -> None:
    pool = ranked()
    for endpoint in pool.endpoints.values():
        endpoint.progress.came()
        endpoint.lease(10, lambda: None)
    for second in range(20):
        look(pool, float(second), 1.0)
    (one,) = stalled([pool])
    assert one.progress.stalled == "stalled: no token for 14 s with requests (limit 10 s)"
    assert pool.ready == 0


def test_a_metrics_page_is_read_by_rank() -> None:
    page = b"".join(
        b'%b{engine="%d",model_name="m"} %b\n' % (name, rank, value)
        for name, values in {
            b"vllm:num_requests_running": (b"2.0", b"3.0"),
            b"vllm:num_requests_waiting": (b"0.0", b"1.0"),
            b"vllm:kv_cache_usage_perc": (b"0.5", b"0.7"),
            b"vllm:prefix_cache_queries_total": (b"100.0", b"50.0"),
            b"vllm:prompt_tokens_total": (b"120.0", b"60.0"),
            b"vllm:generation_tokens_total": (b"9.0", b"8.0"),
        }.items()
        for rank, value in zip((4, 5), values, strict=True)
    )
    found = parse_metrics(page, VLLM_SCRAPE)
    assert (found.running, found.kv_usage) == (5.0, pytest.approx(0.6))
    assert found.ranks == {
        "4": RankSample(
            kv_usage=0.5,
            running=2.0,
            waiting=0.0,
            prefix_queries_total=100.0,
            prompt_tokens_total=120.0,
            generation_tokens_total=9.0,
        ),
        "5": RankSample(
            kv_usage=0.7,
            running=3.0,
            waiting=1.0,
            prefix_queries_total=50.0,
            prompt_tokens_total=60.0,
            generation_tokens_total=8.0,
        ),
    }
    one = b'vllm:num_requests_running{engine="0"} 2.0\n'
    assert parse_metrics(one, VLLM_SCRAPE).ranks == {}


def decodes(pool: Pool) -> list[int]:
    return [endpoint.view("").decodes for endpoint in pool.endpoints.values()]


async def test_ranks_that_step_together_count_the_decodes_of_their_group() -> None:
    apart, together = ranked(), ranked(together="demo-0")
    for pool in (apart, together):
        one, other = pool.endpoints.values()
        leases = [one.lease(10, lambda: None), one.lease(10, lambda: None), other.lease(10, lambda: None)]
        for lease in leases:
            lease.first_content()
    assert (decodes(apart), decodes(together)) == ([2, 1], [3, 3])
    together.endpoints["demo-0#1"].take_others((5, 0, 5))
    assert decodes(together) == [8, 8]


async def test_routers_send_each_other_the_load_of_each_rank(world: Callable[..., Any]) -> None:
    made = await with_ranks(world, counting(2), ranks=2)
    client = made.published.client

    def others() -> list[tuple[int, int, int]]:
        value = RouterLoad(id="other", inflight={"demo-0": (3, 300, 1)}, ranks={"demo-0#1": (3, 300, 1)})
        client.xadd(redis_keys.LOADS, {"r": "other:1", "l": codec.encode(value)})
        return [endpoint.others for endpoint in pool_of(made).endpoints.values()]

    await made.until(lambda: others() == [(0, 0, 0), (3, 300, 1)])


async def test_routers_send_each_other_the_rank_of_a_prompt(world: Callable[..., Any]) -> None:
    made = await with_ranks(world, counting(2), ranks=2)
    hashes = b"\1" * 8 + b"\2" * 8
    sent = SentPrompts(sent=(SentPrompt("demo", "demo-0", 1, "a-session", hashes, "1"),))
    made.published.client.xadd(redis_keys.SENT, {"r": "other:1", "p": codec.encode(sent)})
    index = pool_of(made).index
    await made.until(lambda: index.chunks("demo-0#1") == 2)
    assert (index.chunks("demo-0#0"), index.chunks("demo-0")) == (0, 0)


async def test_a_router_reports_its_load_by_instance_and_by_rank(world: Callable[..., Any]) -> None:
    async def waits(engine: Engine, request: Received, writer: Writer) -> None:
        await engine.release.wait()
        await reply({"choices": []})(engine, request, writer)

    made = await with_ranks(world, waits, ranks=2)
    asked = [asyncio.create_task(made.ask()) for _ in range(3)]
    await made.until(lambda: len(made.engines[0].received) == 3)

    def status() -> RouterStatus:
        return codec.read(RouterStatus, made.published.client.get(redis_keys.router_key("router-1")) or b"")

    await made.until(lambda: made.published.client.exists(redis_keys.router_key("router-1")) and status().inflight)
    await made.until(lambda: status().inflight.get("demo-0", (0,))[0] == 3)
    assert {name: load[0] for name, load in status().ranks.items()} == {"demo-0#0": 2, "demo-0#1": 1}
    made.engines[0].release.set()
    await asyncio.gather(*asked)

    def chosen() -> set[str]:
        windows = status().classes.get("demo", {}).values()
        return {name for window in windows for instances in window.chosen.values() for name in instances}

    await made.until(chosen)
    assert chosen() == {"demo-0"}  # the page Live shows instances
