"""The exact index on the request path: real simulated engines, a router, receipts and metrics."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import orjson
import pytest

from router.app import Router
from router.contract.redis import redis_keys
from router.kv_events.batch import decode
from router.kv_events.feed import Feed
from router.kv_events.listener import UNLIKE
from router.picker.picking import Picking
from router.policy.value import replace
from router.pool.endpoint import Endpoint
from router.prefix.accuracy import FEWEST
from router.prefix.blocks import TOKEN_BYTES, Medium
from router.prefix.exact.groups import EVERYONE, FIRST, Rules
from router.prefix.exact.index import ExactIndex
from router.prefix.media import MOST_PARTS, media_in
from router.prefix.shortfall import SURE
from router.request.call import Call
from router.serving.prompt import rendering
from router.tests.conftest import Published, entry, key_entry, running
from router.tests.kv_events.conftest import Sim, quick, start_sim
from router.tests.picker.asking import Asking, body, headers, modes
from router.tests.test_aliases import put
from router.tests.test_keys import ALICE, BOB, bearer
from router.tests.tokenize.conftest import folder
from router.tests.values import loaded, stored
from router.tokenize import Prompt, prompt
from router.tokenize.sim import SimTokenizer
from router.tokenize.tokenizer import EngineRenders, packed
from router.upstream.answer import usage as usages
from router.upstream.errors import FirstByteTimeout

__all__ = ["folder", "quick", "start_sim"]
pytestmark = pytest.mark.usefixtures("quick")

PARSE = usages.parse
PROMPT = "sixteen tokens of four bytes each, so one block holds 64 bytes. " * 8  # 128 tokens


def sim_entry(sim: Sim, name: str = "demo-0", **changes: Any) -> dict[str, Any]:
    return entry(name, sim.url, **{"events": sim.url, "tokenizer": "sim", **changes})


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.02)


def belief(router: Router, name: str = "demo-0") -> Any:
    pool = router.pools.get("demo")
    assert pool is not None
    return pool.endpoints[name].belief


async def ask(client: Any, prompt: object = PROMPT, headers: dict[str, str] | None = None, **body: Any) -> str:
    asked = {"model": "llama", "prompt": prompt, "max_tokens": 1, "ignore_eos": True, **body}
    answer = await client.post("/v1/completions", json=asked, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-request-id"])


async def receipt(published: Published, request_id: str) -> dict[str, Any]:
    await until(lambda: published.client.exists(redis_keys.receipt_key(request_id)))
    return loaded(published.client.get(redis_keys.receipt_key(request_id))) or {}


@pytest.mark.slow
async def test_a_prompt_that_the_engine_holds_is_predicted_to_the_token(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    sims = [start_sim(), start_sim()]
    await sims[1].ask(PROMPT)  # sent directly, not through the router
    published.policy(strategy="cache_aware")
    published.fleet(*(sim_entry(sim, f"demo-{number}") for number, sim in enumerate(sims)))
    async with running(redis_url) as (router, client):
        await until(lambda: all(belief(router, name).index == "exact" for name in ("demo-0", "demo-1")))
        pool = router.pools.get("demo")
        assert pool is not None
        await until(
            lambda: pool.kv_event_state.index is not None and pool.kv_event_state.index.blocks("demo-1") == (8, 0, 0)
        )
        made = await receipt(published, await ask(client, PROMPT + "and more"))
        assert (made["index"], made["prompt_tokens"], made["instance"]) == ("exact", 130, "demo-1")
        assert made["predicted_cached"] == made["cached_tokens"] == 128
        page = (await client.get("/metrics")).text
        assert 'weir_router_index_blocks{instance="demo-1",pool="demo",tier="device"}' in page
        assert 'weir_router_index_believed{index="exact",instance="demo-0",pool="demo"} 1.0' in page


async def test_a_name_of_pools_with_salts_by_key_and_without_is_predicted_to_the_token_in_both(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    for pool, salted in (("demo", True), ("spot", False)):
        published.policy(pool)
        published.fleet(sim_entry(start_sim(), f"{pool}-0"), pool=pool, salt_by_key=salted)
    published.keys(key_entry(ALICE), key_entry(BOB), required=())
    put(published, {"m": {"split": [{"pool": "demo", "weight": 1}, {"pool": "spot", "weight": 1}]}})
    async with running(redis_url) as (router, client):
        await until(lambda: (pool := router.pools.get("spot")) and pool.endpoints["spot-0"].belief.index == "exact")
        await until(lambda: belief(router).index == "exact" and router.pools.models_version == 1)
        cached: list[tuple[str, object]] = []
        for secret in (ALICE, BOB, ALICE):
            for pool in ("demo", "spot"):
                named = {**bearer(secret), "x-weir-pool": pool}
                made = await receipt(published, await ask(client, headers=named, model="m"))
                assert (made["index"], made["pool"], made["predicted_cached"]) == ("exact", pool, made["cached_tokens"])
                cached.append((pool, made["cached_tokens"]))
                state = router.pools.get_or_add(pool).kv_event_state
                blocks = 8 * cached.count((pool, 0))
                await until(lambda: state.index is not None and state.index.blocks(f"{pool}-0")[0] == blocks)  # noqa: B023
        assert cached == [("demo", 0), ("spot", 0), ("demo", 0), ("spot", 112), ("demo", 112), ("spot", 112)]


async def test_a_kind_of_request_that_is_wrongly_predicted_leaves_the_index_exact_for_all_others(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    sim = start_sim()
    published.policy()
    published.fleet(sim_entry(sim))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        await ask(client)
        pool = router.pools.get("demo")
        assert pool is not None
        wrong = pool.endpoints["demo-0"].by_kind.of("/v1/completions echo").exact
        for _ in range(1_000):
            wrong.add(1_000, 0, 1_000)
        await until(lambda: "not for /v1/completions echo" in belief(router).why)
        assert belief(router).index == "exact"
        for _ in range(3):
            assert (await receipt(published, await ask(client)))["index"] == "exact"
            assert (await receipt(published, await ask(client, echo=True)))["index"] == "approximate"
        made = await receipt(published, await ask(client, echo=True, logprobs=1))
        assert made["predicted_cached"] == 0


@pytest.mark.slow
async def test_the_last_block_of_a_complete_prompt_is_not_predicted(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    sim = start_sim()
    published.policy()
    published.fleet(sim_entry(sim))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        await ask(client)
        pool = router.pools.get("demo")
        assert pool is not None
        await until(
            lambda: pool.kv_event_state.index is not None and pool.kv_event_state.index.blocks("demo-0")[0] == 8
        )
        made = await receipt(published, await ask(client))
        assert (made["predicted_cached"], made["cached_tokens"]) == (112, 112)


@pytest.mark.slow
async def test_a_receipt_names_the_tiers_that_were_expected_and_that_served(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    sim = start_sim(**{"kv-blocks": 16, "dram-gb": 1, "tier-load": "always"})
    published.policy()
    published.fleet(sim_entry(sim))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        first = await receipt(published, await ask(client, PROMPT + "and more"))
        assert (first.get("predicted_tiers"), first["cached_tiers"]) == (None, [0, 0, 0])
        await ask(client, "something else. " * 63)
        pool = router.pools.get("demo")
        assert pool is not None
        index = pool.kv_event_state.index
        await until(lambda: index is not None and index.blocks("demo-0")[1] == 8 + 15)
        second = await receipt(published, await ask(client, PROMPT + "and more"))
        assert (second["predicted_cached"], second["cached_tokens"]) == (128, 128)
        assert second["predicted_tiers"] == second["cached_tiers"] == [0, 128, 0]


@pytest.mark.slow
async def test_without_events_the_approximate_index_is_used_and_named(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    sim = start_sim()
    published.policy()
    published.fleet(entry("demo-0", sim.url))
    async with running(redis_url) as (router, client):
        await ask(client)
        made = await receipt(published, await ask(client))
        assert made["index"] == "approximate"
        await until(lambda: "no KV events are received" in belief(router).why)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("named", "why"), [("", "no tokenizer is named"), ("/nowhere", "the tokenizer /nowhere cannot be used")]
)
async def test_an_unavailable_tokenizer_is_not_an_error_to_clients(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, named: str, why: str
) -> None:
    sim = start_sim()
    published.policy()
    published.fleet(sim_entry(sim, tokenizer=named))
    async with running(redis_url) as (router, client):
        await until(lambda: why in belief(router).why)
        assert (await receipt(published, await ask(client)))["index"] == "approximate"


@pytest.mark.parametrize("given", ["cache_salt", "extra_key", "header"])
async def test_a_salted_prompt_is_predicted_to_the_token_and_no_other_tenants(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, given: str
) -> None:
    sim = start_sim()
    published.policy()
    published.fleet(sim_entry(sim))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        seen = []
        for salt, blocks in (("tenant-a", 8), ("tenant-a", 8), ("tenant-b", 16), ("", 24)):
            salted: dict[str, Any] = {"headers": {"x-cache-salt": salt}} if given == "header" else {given: salt}
            record = await receipt(published, await ask(client, **(salted if salt else {})))
            seen.append((record["index"], record["predicted_cached"], record["cached_tokens"]))
            index = pool.kv_event_state.index
            await until(lambda blocks=blocks, index=index: index is not None and index.blocks("demo-0")[0] == blocks)
        assert seen == [("exact", 0, 0), ("exact", 112, 112), ("exact", 0, 0), ("exact", 0, 0)]


async def test_predictions_for_an_engine_without_prefix_caching_are_zero_and_never_exact(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    sim = start_sim()
    published.policy()
    published.fleet(sim_entry(sim))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        await ask(client)
        sample = {"id": "demo-0", "epoch": 1, "at": time.time(), "uncached": True}
        published.client.set(redis_keys.instance_key("demo-0"), stored(sample))
        await until(lambda: belief(router).index == "none")
        made = await receipt(published, await ask(client))
        assert (made["index"], made["predicted_cached"]) == ("none", 0)
        assert "prefix caching is off" in made["index_reason"]
        (known,) = (await client.get("/healthz")).json()["pools"]["demo"]["indexes"]
        assert (known["index"], known["reason"]) == ("none", "uncached")


async def test_an_engine_that_never_reports_cached_tokens_does_not_count_as_exact(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang does not report them without --enable-cache-report."""
    with monkeypatch.context() as patch:
        patch.setattr(usages, "parse", lambda raw: replace(PARSE(raw), cached_tokens=None))
        sim = start_sim()
        published.policy()
        published.fleet(sim_entry(sim))
        async with running(redis_url) as (router, client):
            await until(lambda: belief(router).index == "exact")
            for _ in range(FEWEST + 1):
                await ask(client)
            await until(lambda: belief(router).index == "approximate")
            assert "--enable-cache-report" in belief(router).why
            (known,) = (await client.get("/healthz")).json()["pools"]["demo"]["indexes"]
            assert (known["index"], known["reason"]) == ("approximate", "unconfirmed")
            patch.undo()
            await ask(client)
            await until(lambda: belief(router).index == "exact")


async def test_an_answer_with_fewer_cached_tokens_than_predicted_refutes_the_others(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = start_sim()
    published.policy()
    published.fleet(sim_entry(sim))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        await ask(client)
        index = pool.kv_event_state.index
        await until(lambda: index is not None and index.blocks("demo-0")[0] == 8)
        refuted: list[tuple[int, int]] = []
        monkeypatch.setattr(
            ExactIndex, "refute", lambda self, instance, hashes, held, asked_at: refuted.append((len(hashes), held))
        )
        await ask(client)
        assert refuted == []
        monkeypatch.setattr(usages, "parse", lambda raw: replace(PARSE(raw), cached_tokens=40))
        await ask(client)
        await until(lambda: refuted)
        assert refuted == [(7, 2)]


async def test_an_engine_that_recomputes_the_last_block_is_predicted_with_one_less(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most versions recompute it with speculative decoding."""

    def shorter(used: usages.Usage) -> usages.Usage:
        return replace(used, cached_tokens=max((used.cached_tokens or 0) - 16, 0))

    monkeypatch.setattr(usages, "parse", lambda raw: shorter(PARSE(raw)))
    sim = start_sim()
    published.policy()
    published.fleet(sim_entry(sim))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        await ask(client)
        index = pool.kv_event_state.index
        await until(lambda: index is not None and index.blocks("demo-0")[0] == 8)
        for _ in range(SURE):
            await ask(client)
        await until(lambda: pool.kv_event_state.reach == {"/v1/completions": {"demo-0": (16, 0)}})
        made = await receipt(published, await ask(client))
        assert (made["index"], made["predicted_cached"], made["cached_tokens"]) == ("exact", 96, 96)
        assert (await receipt(published, await ask(client, "other " * 40)))["predicted_cached"] == 0


def speculating(monkeypatch: pytest.MonkeyPatch, *by_rule: int) -> None:
    """Let the first engine hold so many tokens of each prompt by each rule of speculation."""

    def match(self: ExactIndex, hashes: object, size: int, parts: object = None, rules: Rules = EVERYONE) -> object:
        return {"demo-0": (by_rule[next(rule for rule, instances in rules if instances & 1)], 0, 0)}

    monkeypatch.setattr(ExactIndex, "by_rule", lambda *asked: by_rule)
    monkeypatch.setattr(ExactIndex, "match", match)
    monkeypatch.setattr(ExactIndex, "foreseen", lambda *asked: {})


async def test_an_engine_with_several_groups_of_layers_is_predicted_by_the_rule_that_explains_its_answers(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usages, "parse", lambda raw: replace(PARSE(raw), cached_tokens=64))
    speculating(monkeypatch, 112, 64, 32)
    published.policy()
    published.fleet(sim_entry(start_sim()))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        await ask(client)
        index = pool.kv_event_state.index
        await until(lambda: index is not None and index.blocks("demo-0")[0] == 8)
        made = [await receipt(published, await ask(client)) for _ in range(SURE + 2)]
        assert [each["predicted_cached"] for each in made] == [112] * SURE + [64] * 2
        assert pool.endpoints["demo-0"].by_kind.asks == 0
        assert pool.kv_event_state.reach == {}


async def test_a_shortfall_that_is_explained_by_a_rule_is_deducted_no_second_time(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usages, "parse", lambda raw: replace(PARSE(raw), cached_tokens=96))
    published.policy()
    published.fleet(sim_entry(start_sim()))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        await ask(client)
        index = pool.kv_event_state.index
        await until(lambda: index is not None and index.blocks("demo-0")[0] == 8)
        for _ in range(SURE):  # as if all were sent before the first answer
            await ask(client)
        by_kind = pool.endpoints["demo-0"].by_kind
        await until(lambda: pool.kv_event_state.reach == {"/v1/completions": {"demo-0": (16, 0)}})
        speculating(monkeypatch, 112, 96, 80)
        for _ in range(SURE):
            await receipt(published, await ask(client))
        await until(lambda: pool.kv_event_state.reach == {})
        made = [await receipt(published, await ask(client)) for _ in range(SURE)]
        assert [each["predicted_cached"] for each in made] == [96] * SURE
        assert by_kind.kinds["/v1/completions"].shortfall.tokens == 0


async def test_the_rule_by_which_an_engine_speculates_is_learnt_with_the_approximate_index_in_use_too(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usages, "parse", lambda raw: replace(PARSE(raw), cached_tokens=64))
    speculating(monkeypatch, 112, 64, 32)
    published.policy()
    published.fleet(sim_entry(start_sim()))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        await ask(client)
        index, by_kind = pool.kv_event_state.index, pool.endpoints["demo-0"].by_kind
        await until(lambda: index is not None and index.blocks("demo-0")[0] == 8)
        for _ in range(100):
            by_kind.of("/v1/completions").exact.add(1_000, 0, 1_000)
        await until(lambda: belief(router).index == "approximate")
        made = [await receipt(published, await ask(client)) for _ in range(SURE + 1)]
        assert {each["index"] for each in made} == {"approximate"}
        assert by_kind.of("/v1/completions").speculation.rule == FIRST


async def test_instances_that_hash_blocks_differently_from_their_pool_are_not_predicted_exactly(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sims = [start_sim(), start_sim()]
    published.policy()
    published.fleet(*(sim_entry(sim, f"demo-{number}") for number, sim in enumerate(sims)))
    monkeypatch.setattr(Feed, "ahead", property(lambda feed: int(feed.instance == "demo-1")))
    for sim in sims:
        await sim.ask(PROMPT)
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact" and belief(router, "demo-1").reason == "events")
        assert belief(router, "demo-1").why == UNLIKE.format(1, 0)
        assert (await receipt(published, await ask(client)))["index"] in {"approximate", "exact"}


class OnlyEngines(SimTokenizer):
    def tokens(self, prompt: Prompt, api_path: str) -> bytes:
        raise EngineRenders("only engines render it")


CHAT = {"model": "llama", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1}


async def of_chat(published: Published, client: Any, **more: Any) -> dict[str, Any]:
    return await receipt(
        published, (await client.post("/v1/chat/completions", json=CHAT | more)).headers["x-request-id"]
    )


async def test_an_engine_is_asked_for_the_tokens_of_a_prompt_that_only_engines_render(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.policy()
    published.fleet(sim_entry(start_sim()))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        pool.kv_event_state.reader, endpoint = OnlyEngines(), pool.endpoints["demo-0"]
        made = await of_chat(published, client)
        assert (made["index"], made["predicted_cached"], made["cached_tokens"]) == ("exact", 0, 0)
        await until(lambda: pool.kv_event_state.index and pool.kv_event_state.index.blocks("demo-0")[0] >= 8)
        made = await of_chat(published, client)
        assert (made["index"], made["predicted_cached"], made["cached_tokens"]) == ("exact", 128, 128)
        assert made["prompt_tokens"] == made["actual_prompt_tokens"]

        # No request is sent for media that the engine would fetch, or soon after the engine failed to render
        elsewhere = {"messages": [{"role": "user", "content": PROMPT, "image_url": {"url": "https://elsewhere/a.png"}}]}
        assert (await of_chat(published, client, **elsewhere))["index"] == "approximate"
        assert endpoint.renders_from == [0, 0]
        monkeypatch.setattr(rendering, "_HEAD", rendering._HEAD.replace(b"/render", b"/nowhere"))
        made = await of_chat(published, client, user="another")
        assert (made["index"], made["index_reason"]) == ("approximate", "only engines render it")
        waits_until, _ = waits = list(endpoint.renders_from)
        assert waits == [waits_until, 0]
        assert waits_until > 0
        assert (await of_chat(published, client, user="another"))["index"] == "approximate"
        assert endpoint.renders_from == waits
        here = {"messages": [{"role": "user", "content": PROMPT, "image_url": {"url": "data:,a"}}]}
        assert (await of_chat(published, client, **here))["index"] == "approximate"
        assert endpoint.renders_from[1] > 0


async def test_a_slow_or_too_large_answer_stops_only_the_requests_for_its_key(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.policy()
    published.fleet(sim_entry(start_sim()))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        pool.kv_event_state.reader, endpoint = OnlyEngines(), pool.endpoints["demo-0"]

        async def late(*_: object) -> tuple[int, rendering.Rendered | None]:
            raise FirstByteTimeout

        for name, value in (("LARGEST", -1), ("_asked", late)):
            endpoint.renders_for.clear()
            with monkeypatch.context() as patch:
                patch.setattr(rendering, name, value)
                assert (await of_chat(published, client, user="another"))["index"] == "approximate"
            assert (endpoint.renders_from, [*endpoint.renders_for]) == ([0, 0], [("", False)])
            assert (await of_chat(published, client, user="another"))["index"] == "approximate"
            assert rendering._chosen([endpoint], ("another", False), 0.0) is endpoint
        endpoint.renders_for.clear()
        assert (await of_chat(published, client))["index"] == "exact"


async def test_a_further_turn_with_a_deep_field_is_rendered_as_a_whole(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    published.policy()
    published.fleet(sim_entry(start_sim()))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        pool.kv_event_state.reader = OnlyEngines()
        first = [{"role": "user", "content": PROMPT * 20}]
        further = [*first, {"role": "assistant", "content": "so"}, {"role": "user", "content": PROMPT}]
        deep = orjson.loads(b"[" * 300 + b"]" * 300)
        for messages in (first, further):
            made = await of_chat(published, client, messages=messages, metadata=deep)
            assert (made["outcome"], made["index"]) == ("ok", "exact")
        image = {"type": "image_url", "image_url": {"url": "data:,a"}}
        made = await of_chat(published, client, messages=[{"role": "user", "content": [image]}], metadata=deep)
        assert (made["outcome"], made["index"]) == ("ok", "approximate")


async def test_a_large_body_is_not_searched_for_images(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(document: object) -> tuple[bool, bool]:
        raise AssertionError

    monkeypatch.setattr(rendering, "media_in", searched)
    request = SimpleNamespace(body=bytes(rendering.LARGEST_READ + 1), prompt=SimpleNamespace(document={}))
    pool = SimpleNamespace(kv_event_state=SimpleNamespace(reader_name=""))
    call = SimpleNamespace(request=request, api_path="/v1/messages", pool=pool)
    await rendering.Rendering().ask(cast("Call", call))
    request.body = b""
    with pytest.raises(AssertionError):
        await rendering.Rendering().ask(cast("Call", call))


IMAGE = {"type": "image", "source": {"type": "base64", "data": "a"}}
FILE = {"type": "object", "properties": {"file": {"type": "string"}, "image": {"type": "image"}}}


@pytest.mark.parametrize(
    ("turn", "found"),
    [
        ({"content": "image_url"}, (False, False)),
        ({"content": [{"type": "text", "text": '"image_url":'}]}, (False, False)),
        ({"content": [{"type": ["image"]}, "image", 7, None]}, (False, False)),
        ({"content": [{"type": "tool_use", "input": {"file": "a", "url": "https://a"}}]}, (False, False)),
        ({"content": [{"type": "tool_result", "content": [IMAGE]}]}, (True, False)),
        ({"content": [{"image_url": {"url": "data:,a"}}]}, (True, False)),
        ({"content": [{"type": "image_url", "image_url": {"url": "file:///a"}}]}, (True, True)),
        ({"content": [{"type": "input_image", "image_url": "https://a"}]}, (True, True)),
        ({"content": [{"type": "file", "file": {"file_id": "a"}}, IMAGE]}, (True, True)),
        (
            {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "data:,"}},
            (True, False),
        ),
        ({"type": "function_call_output", "output": [{"type": "input_image", "file_id": "a"}]}, (True, True)),
        ({"content": [{}] * MOST_PARTS}, (True, True)),
    ],
)
@pytest.mark.parametrize("field", ["messages", "input"])
def test_images_sounds_and_files_are_found_only_in_the_conversation(
    turn: dict[str, Any], found: tuple[bool, bool], field: str
) -> None:
    """Tools, their arguments and texts do not count even with such a field name; an escaped name does count."""
    written = orjson.dumps({"tools": [{"function": {"parameters": FILE}}], field: [turn]})
    assert media_in(orjson.loads(written)) == found
    assert media_in(orjson.loads(written.replace(b"image", b"im\\u0061ge"))) == found


def features(*places: tuple[int, int]) -> dict[str, Any]:
    names, ranges = [f"{start}" for start, _ in places], [{"offset": at, "length": long} for at, long in places]
    return {"mm_hashes": {"image": names}, "mm_placeholders": {"image": ranges}}


async def test_a_further_turn_asks_for_its_new_part_and_a_picker_asks_as_a_router_does(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, asks = [], rendering._asked

    async def counted(call: Call, endpoint: Endpoint, body: bytes) -> tuple[int, rendering.Rendered | None]:
        asked.append(len(body))
        return await asks(call, endpoint, body)

    monkeypatch.setattr(rendering, "_asked", counted)
    published.policy()
    published.fleet(sim_entry(start_sim()))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        pool.kv_event_state.reader, index = OnlyEngines(), pool.kv_event_state.index
        first = [{"role": "user", "content": PROMPT * 20}]
        further = [*first, {"role": "assistant", "content": "so"}, {"role": "user", "content": PROMPT}]
        await of_chat(published, client, messages=first)
        await until(lambda: index is not None and index.blocks("demo-0")[0] >= 160)
        made = await of_chat(published, client, messages=further)
        assert (made["index"], made["predicted_cached"], made["cached_tokens"]) == ("exact", 2_560, 2_560)
        whole, *short = asked
        assert len(short) == 2
        assert sum(short) < whole / 4

        asking = Asking()
        head = {":method": "POST", ":path": "/v1/chat/completions", "x-request-id": "p-1"}
        longer = orjson.dumps({**CHAT, "messages": [*further, *further]})
        asking.say(headers(head) + modes(), body(longer), None)
        incoming = await asking.stream.head()
        assert incoming is not None
        picking = Picking(router.pools, router.source.sessions, router.recorder, router.pages)
        await picking.pick(incoming, asking.stream)
        made = await receipt(published, "p-1")
        assert (made["index"], made["outcome"]) == ("exact", "picked")
        assert made["predicted_cached"] >= 2_560
        tokens = SimTokenizer().tokens(prompt.read(longer, "/v1/chat/completions"), "/v1/chat/completions")
        assert made["prompt_tokens"] == len(tokens) / TOKEN_BYTES


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"[]", b"{}", b'{"token_ids": []}', b'{"token_ids": ["a"]}', b'{"token_ids": [-1]}'),
        *(b'{"token_ids": 3}', b'{"token_ids": [1], "features": {"mm_hashes": {"image": ["a"]}}}'),
        *(
            orjson.dumps({"token_ids": [1] * 9, "features": features(*places)})
            for places in ([(8, 2)], [(-1, 2)], [(0, 0)], [(0, 3), (2, 3)])
        ),
    ],
)
def test_an_answer_without_the_tokens_of_a_prompt_is_ignored(answer: bytes) -> None:
    assert rendering._rendered(answer) is None


def test_an_answer_reports_where_images_and_sounds_are_among_the_tokens() -> None:
    found = features((5, 3))
    found["mm_hashes"]["audio"], found["mm_placeholders"]["audio"] = ["a"], [{"offset": 1, "length": 4}]
    rendered = rendering._rendered(orjson.dumps({"token_ids": list(range(9)), "features": found}))
    assert rendered == (packed(range(9)), [Medium(1, 4, "a"), Medium(5, 3, "5")])


@pytest.mark.parametrize(("name", "cached"), [("cat", 64), ("dog", 16)])
async def test_images_are_distinguished_by_their_names_where_an_engine_renders_them(
    start_sim: Callable[..., Sim],
    published: Published,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    cached: int,
) -> None:
    """The engine's block hashes include the names: what was cached for one image is not credited to another."""
    published.policy()
    published.fleet(sim_entry(start_sim()))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        index = pool.kv_event_state.index
        assert isinstance(index, ExactIndex)
        pool.kv_event_state.reader = OnlyEngines()
        tokens, asked = list(range(100)), []
        found = {"mm_hashes": {"image": [name]}, "mm_placeholders": {"image": [{"offset": 20, "length": 30}]}}

        async def answer(call: Call, endpoint: Endpoint, body: bytes) -> tuple[int, rendering.Rendered | None]:
            asked.append(orjson.loads(body)["mm_payload"])
            return 200, rendering._rendered(orjson.dumps({"token_ids": tokens, "features": found}))

        monkeypatch.setattr(rendering, "_asked", answer)
        blocks = {
            "type": "BlockStored",
            "block_hashes": [11, 12, 13, 14],
            "parent_block_hash": None,
            "token_ids": tokens[:64],
            "block_size": 16,
            "extra_keys": [None, [["cat", 4]], [["cat", -12]], [["cat", -28]]],
        }
        feed = pool.endpoints["demo-0"].feed
        assert feed is not None
        feed._tell(decode(msgspec.msgpack.encode([1.0, [blocks], 0])))
        image = {"type": "image_url", "image_url": {"url": f"data:,{name}"}}
        made = await of_chat(published, client, messages=[{"role": "user", "content": [image]}], mm_payload="tensors")
        assert (made["index"], made["predicted_cached"], asked) == ("exact", cached, ["none"])
        assert list(pool.endpoints["demo-0"].by_kind.kinds) == ["/v1/chat/completions image_url"]


async def test_a_request_that_the_exact_index_cannot_know_is_counted_with_its_reason(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    sim = start_sim()
    published.policy()
    published.fleet(sim_entry(sim))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        made = await receipt(published, await ask(client, ["two", "prompts"]))
        assert made["index"] == "approximate"
        assert "prompts" in made["index_reason"]
        assert (await receipt(published, await ask(client))).get("index_reason") is None
        page = (await client.get("/metrics")).text
        assert 'weir_router_untokenized_requests_total{pool="demo"} 1.0' in page
        assert 'weir_router_index_requests_total{index="approximate",pool="demo",reason="request"} 1.0' in page
        assert 'weir_router_index_requests_total{index="exact",pool="demo",reason=""} 1.0' in page
        (known,) = (await client.get("/healthz")).json()["pools"]["demo"]["indexes"]
        assert known == {"index": "exact", "reason": "", "but_for": "", "n": 1, "first": "demo-0"}


@pytest.mark.slow
async def test_a_long_prompt_is_tokenised_by_the_models_own_tokenizer_outside_the_loop(
    start_sim: Callable[..., Sim], published: Published, redis_url: str, folder: Path
) -> None:
    """The sim has other tokens, so nothing matches; but the prompt is counted in the model's tokens."""
    sim = start_sim()
    published.policy()
    published.fleet(sim_entry(sim, tokenizer=str(folder)))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        pool = router.pools.get("demo")
        assert pool is not None
        reader = pool.kv_event_state.reader
        assert reader is not None
        made = await receipt(published, await ask(client, PROMPT * 4))
        assert made["prompt_tokens"] == len(reader.whole(PROMPT * 4)) // 4  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_a_restarted_engine_is_followed_in_its_new_epoch(
    start_sim: Callable[..., Sim], published: Published, redis_url: str
) -> None:
    sim = start_sim()
    published.policy()
    published.fleet(sim_entry(sim))
    async with running(redis_url) as (router, client):
        await until(lambda: belief(router).index == "exact")
        await ask(client)
        pool = router.pools.get("demo")
        assert pool is not None
        index = pool.kv_event_state.index
        assert index is not None
        await until(lambda: index.blocks("demo-0")[0] == 8)
        sim.kill()
        published.fleet(sim_entry(start_sim(), epoch=2))
        await until(lambda: pool.endpoints["demo-0"].epoch == 2 and belief(router).index == "exact")
        assert index.blocks("demo-0") == (0, 0, 0)
        made = await receipt(published, await ask(client))
        assert (made["index"], made["predicted_cached"], made["cached_tokens"]) == ("exact", 0, 0)
