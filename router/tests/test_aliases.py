"""A serving router applies the document Models: splits, names on both sides, fallbacks, keys and adapters."""

import asyncio
import json
import time

import pytest

from router.contract import models
from router.contract.models import Target
from router.contract.redis import redis_keys
from router.pool.rollout import hashed
from router.serving.aliases import by_weight
from router.tests.conftest import entry, key_entry, running
from router.tests.engine import engine, hang_up, reply, write_chunk, write_head
from router.tests.values import loaded, stored


def put(published, document, version=1, **more):
    made = models.dump(models.parse({"models": document}))
    value = {"version": version, "sha256": models.sha256(made), "document": made, "published_at": time.time(), **more}
    published.client.set(redis_keys.MODELS, stored(value))
    published.client.publish(redis_keys.CHANGED, redis_keys.MODELS)


async def known(w, document, version=1):
    put(w.published, document, version)
    await w.until(lambda: w.router.pools.models_version == version, "the document")


async def second(w, engine, pool="spot", model="llama", **changes):
    w.published.policy(pool)
    w.published.fleet(entry(f"{pool}-0", engine.url, **changes), pool=pool, model=model)
    await w.until(lambda: (there := w.router.pools.get(pool)) is not None and there.ready)


async def named(engine, request, writer):
    """Answer with the requested model's name, as engines do, in two events split at an odd place."""
    model = request.document["model"]
    said = json.dumps({"object": "x", "model": model, "choices": [{"text": "hi"}]}, separators=(",", ":")).encode()
    if request.document.get("stream"):
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        event = b"data: " + said + b"\n\n"
        for part in (event, event[:25], event[25:], b"data: [DONE]\n\n"):
            write_chunk(writer, part)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    else:
        write_head(writer, 200, "content-type: application/json", f"content-length: {len(said)}")
        writer.write(said)
    await writer.drain()


def test_a_tenth_of_10000_sessions_uses_the_second_pool_and_a_growing_weight_moves_none_back():
    def in_second(weight):
        split = [Target("h200", 100 - weight), Target("h100", weight)]
        keys = {name: hashed("chat-large", f"session {name}") for name in range(10_000)}
        return {name for name, key in keys.items() if by_weight(key, split).pool == "h100"}

    tenth = in_second(10)
    assert 900 <= len(tenth) <= 1100
    assert tenth < in_second(25)


async def test_the_engine_gets_its_own_name_and_the_client_gets_the_name_that_it_used(world):
    w = await world(named)
    await known(w, {"chat-large": {"pool": "demo"}})
    answer = await w.ask(model="chat-large")
    streamed = await w.ask(model="chat-large", stream=True)
    assert {request.document["model"] for request in w.engines[0].received} == {"llama"}
    assert answer.json()["model"] == "chat-large"
    events = [line for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    assert [json.loads(line[6:])["model"] for line in events] == ["chat-large"] * 2
    receipt = await w.receipt(answer)
    assert (receipt["alias"], receipt["pool"], receipt["model"]) == ("chat-large", "demo", "llama")
    assert receipt["target_reason"] == "the only target"
    metrics = (await w.client.get("/metrics")).text
    assert 'weir_router_model_requests_total{model="chat-large",outcome="ok",pool="demo"} 2.0' in metrics
    asked = lambda: (loaded(w.published.client.get(redis_keys.router_key("router-1"))) or {}).get("aliases")  # noqa: E731
    await w.until(lambda: asked() == {"demo": {"chat-large": 2}})


async def test_a_name_that_is_not_in_the_document_adds_nothing_to_its_receipt(world):
    w = await world(None)
    assert not {"alias", "target_reason", "adapter"} & (await w.receipt(await w.ask())).keys()


async def test_each_session_stays_in_its_pool(world):
    w = await world(named)
    async with engine(named) as other:
        await second(w, other)
        await known(w, {"m": {"split": [{"pool": "demo", "weight": 50}, {"pool": "spot", "weight": 50}]}})
        for number in range(20):
            session = {"x-session-id": f"session {number}"}
            answers = [await w.ask(model="m", headers=session) for _ in range(3)]
            assert len({answer.headers["x-weir-instance"] for answer in answers}) == 1
        assert w.engines[0].received
        assert other.received


async def test_a_conversation_without_a_session_stays_where_it_began(world):
    w = await world(named)
    async with engine(named) as other:
        await second(w, other)
        await known(w, {"m": {"split": [{"pool": "demo", "weight": 50}, {"pool": "spot", "weight": 50}]}})
        for number in range(8):
            prompt, pools = f"conversation {number} " * 40, set()
            for _ in range(4):
                answer = await w.ask(model="m", prompt=prompt)
                pools.add(answer.headers["x-weir-instance"])
                prompt += "and so it went on, and on, and on, until the next turn came. " * 6
            assert len(pools) == 1


@pytest.mark.parametrize(
    ("behaviour", "condition"),
    [
        (hang_up, "upstream_failed"),
        *((reply({"no": 1}, status), "upstream_failed") for status in (408, 500)),
        (reply({"no": 1}, 429), "saturated"),
    ],
)
async def test_before_the_first_byte_the_next_target_serves(world, behaviour, condition):
    w = await world(behaviour, failure__retries=0)
    async with engine(named) as other:
        await second(w, other, model="llama-small")
        await known(w, {"m": {"pool": "demo", "fallback": [{"pool": "spot"}]}})
        answer = await w.ask(model="m", stream=True)
        assert answer.status_code == 200
        assert '"model":"m"' in answer.text
        assert other.received[-1].document["model"] == "llama-small"
        receipt = await w.receipt(answer)
        assert (receipt["pool"], receipt["target_reason"]) == ("spot", f"fallback: {condition} of demo")
        assert [attempt["instance"] for attempt in receipt["attempts"]] == ["demo-0", "spot-0"]
        line = f'weir_router_fallbacks_total{{condition="{condition}",model="m",pool="demo"}} 1.0'
        assert line in (await w.client.get("/metrics")).text


async def test_a_condition_that_is_not_listed_causes_no_fallback(world):
    w = await world(reply({"no": 1}, 500), failure__retries=0)
    async with engine(named) as other:
        await second(w, other)
        await known(w, {"m": {"pool": "demo", "fallback": [{"pool": "spot"}], "on": ["saturated"]}})
        assert (await w.ask(model="m")).status_code == 500
        assert not other.received


@pytest.mark.parametrize("after", [reply({"no": 1}, 500), hang_up])
async def test_a_request_during_which_two_engines_may_have_died_is_not_sent_to_a_third(world, after):
    w = await world(hang_up, after)
    async with engine(named) as other:
        await second(w, other)
        await known(w, {"m": {"pool": "demo", "fallback": [{"pool": "spot"}]}})
        answers = [await w.ask(model="m") for _ in range(2)]  # each engine gets one first
        spared = [answer for answer in answers if answer.status_code == 502]
        assert [(answer.headers["x-should-retry"], "retry-after" in answer.headers) for answer in spared] == [
            ("false", False)
        ] * len(spared)
        assert len(other.received) + len(spared) == 2
        assert spared


async def test_a_clients_error_stays_the_clients_fault(world):
    w = await world(reply({"error": "too long"}, 400))
    async with engine(named) as other:
        await second(w, other)
        await known(w, {"m": {"pool": "demo", "fallback": [{"pool": "spot"}]}})
        assert (await w.ask(model="m")).status_code == 400
        assert not other.received


async def test_a_pool_that_dies_under_load_costs_no_client_an_error(world):
    w = await world(named, failure__retries=1)
    async with engine(named) as other:
        await second(w, other)
        await known(w, {"m": {"pool": "demo", "fallback": [{"pool": "spot"}]}})

        async def ask(number):
            if number == 40:
                w.engines[0].behaviour = hang_up
                w.published.fleet(entry("demo-0", w.engines[0].url, routable=False, state="unreachable"))
            await asyncio.sleep(number / 500)
            return await w.ask(model="m", stream=bool(number % 2), headers={"x-session-id": str(number)})

        answers = await asyncio.gather(*map(ask, range(120)))
        assert {answer.status_code for answer in answers} == {200}
        assert other.received


async def test_a_key_needs_both_the_name_and_the_pool(world):
    w = await world(named)
    async with engine(named) as other:
        await second(w, other)
        half = {"split": [{"pool": "demo", "weight": 50}, {"pool": "spot", "weight": 50}]}
        await known(w, {"m": half, "n": {"pool": "spot"}})
        w.published.keys(
            key_entry("sk-weir-1-pool", pools=["demo"]), key_entry("sk-weir-1-name", models=["m"]), required=("spot",)
        )
        await w.until(lambda: w.router.pools.auth.ring.requires("spot", False))

        async def ask(model, secret, session="s"):
            headers = {"x-session-id": session} | ({"x-api-key": secret} if secret else {})
            return await w.ask(model=model, headers=headers)

        asked = [await ask("m", secret, str(n)) for secret in ("sk-weir-1-pool", "") for n in range(12)]
        assert {answer.headers["x-weir-instance"] for answer in asked} == {"demo-0"}
        refused = [await ask("n", "sk-weir-1-pool"), await ask("n", "sk-weir-1-name"), await ask("n", "")]
        codes = [(answer.status_code, answer.json()["error"]["code"]) for answer in refused]
        assert codes == [(403, "pool_not_allowed"), (403, "model_not_allowed"), (401, "missing_api_key")]
        assert (await ask("llama", "sk-weir-1-name")).status_code == 403
        assert (await ask("m", "sk-weir-1-name")).status_code == 200


async def test_a_target_whose_pool_is_gone_gives_its_share_to_the_others_and_is_reported(world):
    w = await world(named)
    await known(w, {"m": {"split": [{"pool": "gone", "weight": 99}, {"pool": "demo"}]}, "n": {"pool": "gone"}})
    assert (await w.ask(model="m")).status_code == 200
    refused = await w.ask(model="n")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_instance_ready")
    degraded = (await w.client.get("/healthz")).json()["degraded"]
    assert "model n: there is no pool gone" in degraded


async def test_the_models_are_listed_with_their_parents_and_without_paths(world):
    w = await world(None)
    adapter = {"name": "bot@v3", "source": "/lora/secret-v3"}
    await known(w, {"chat": {"pool": "demo"}, "bot": {"pool": "demo", "adapter": adapter}})
    listed = (await w.client.get("/v1/models")).json()["data"]
    assert [(model["id"], model["root"], model["parent"]) for model in listed] == [
        ("bot", "bot@v3", "llama"),
        ("chat", "llama", None),
        ("llama", "llama", None),
    ]
    fields = {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}
    assert all(model.keys() == fields for model in listed)
    assert (await w.client.get("/v1/models/bot")).json() == listed[0]
    assert "/lora" not in json.dumps(listed)


async def test_only_instances_that_hold_the_adapter_get_its_requests(world):
    w = await world(named, named, named)
    urls = [made.url for made in w.engines]
    w.published.fleet(*(entry(f"demo-{i}", url, adapters=["bot@v3"] * (i == 1)) for i, url in enumerate(urls)))
    await w.until(lambda: w.router.pools.get("demo").adapters)
    await known(w, {"bot": {"pool": "demo", "adapter": {"name": "bot@v3"}}})
    answers = [await w.ask(model="bot", headers={"x-session-id": str(n)}) for n in range(9)]
    assert {answer.headers["x-weir-instance"] for answer in answers} == {"demo-1"}
    assert {answer.json()["model"] for answer in answers} == {"bot"}
    assert {request.document["model"] for request in w.engines[1].received} == {"bot@v3"}
    receipt = await w.receipt(answers[0])
    assert receipt["adapter"] == "bot@v3"
    assert receipt["candidates"]["id"] == ["demo-1"]
    assert receipt["candidates"]["left_out"] == {"the adapter bot@v3 is not loaded": 2}
    assert (await w.ask()).status_code == 200


async def test_without_a_home_a_request_for_an_adapter_never_reaches_the_base_model(world):
    w = await world(named)
    await known(w, {"bot": {"pool": "demo", "adapter": {"name": "bot@v3"}}})
    refused = await w.ask(model="bot")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "adapter_not_loaded")
    assert refused.headers["retry-after"]
    assert not w.engines[0].received
    async with engine(named) as other:
        await second(w, other)
        await known(w, {"bot": {"pool": "demo", "adapter": {"name": "bot@v3"}, "fallback": [{"pool": "spot"}]}}, 2)
        assert (await w.ask(model="bot")).headers["x-weir-instance"] == "spot-0"


async def test_a_version_is_acknowledged_and_an_unreadable_one_leaves_the_old_one_in_force(world):
    w = await world(named)
    with w.published.client.pubsub() as channel:
        channel.subscribe(redis_keys.ACKS)
        await known(w, {"m": {"pool": "demo"}}, 7)
        ack = await w.message(channel)
    assert (ack["pool"], ack["version"]) == ("", 7)
    assert loaded(w.published.client.get(redis_keys.router_key("router-1")))["models"] == 7
    put(w.published, {"other": {"pool": "demo"}}, 8, sha256="0" * 64)
    await w.until(lambda: any("Models" in why for why in w.router.source.degraded()))
    assert (await w.ask(model="m")).status_code == 200


async def test_without_redis_the_last_known_document_serves(world):
    w = await world(named)
    await known(w, {"m": {"pool": "demo"}})
    w.published.client.flushdb()
    await w.router.source.live.poll()
    assert (await w.ask(model="m")).json()["model"] == "m"


async def test_a_new_router_applies_the_document(world, redis_url):
    w = await world(named)
    await known(w, {"m": {"pool": "demo"}}, 3)
    async with running(redis_url, "router-2") as (router, client):
        assert router.pools.models_version == 3
        answer = await client.post("/v1/completions", json={"model": "m", "prompt": "hi"})
        assert answer.json()["model"] == "m"
