"""GET /v1/models lists the models that a key may use, with their shortest context, and none without an instance."""

import time
from typing import Any

import pytest

from router.contract.redis import redis_keys
from router.contract.redis.api_keys import MARK
from router.sync import live_state
from router.tests.conftest import World, entry, key_entry
from router.tests.engine import engine
from router.tests.plain_engine import plain
from router.tests.standalone.test_watch import watch as watch  # a fixture
from router.tests.test_aliases import known, second
from router.tests.values import stored

KEY = f"{MARK.decode()}of-chat"
BEARER = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read samples often, since these tests wait for them; routers read one each second."""
    monkeypatch.setattr(live_state, "SAMPLE_S", 0.05)


def sample(world: World, name: str, models: dict[str, int | None] | None) -> None:
    """Write a sample; without a length, as older nodes do."""
    of_models = {} if models is None else {"models": models}
    value = {"id": name, "epoch": 1, "at": time.time(), "pool": "demo", **of_models}
    world.published.client.set(redis_keys.instance_key(name), stored(value))


async def lists(world: World, *samples: dict[str, int | None] | None) -> None:
    for number, models in enumerate(samples):
        sample(world, f"demo-{number}", models)
    pool = world.router.pools.get("demo")
    assert pool is not None
    wanted = [models or {} for models in samples]
    await world.until(lambda: [dict(one.models) for one in pool.endpoints.values()] == wanted, "the lists")


async def listed(world: World, **headers: str) -> dict[str, Any]:
    answer = await world.client.get("/v1/models", headers=headers)
    return {model["id"]: model["max_model_len"] for model in answer.json()["data"]}


async def ghosts(world: World) -> list[str]:
    degraded = (await world.client.get("/healthz")).json()["degraded"]
    return [why for why in degraded if why.startswith("model ")]


async def test_a_models_length_is_the_shortest_of_its_instances(world: Any) -> None:
    w = await world(None, None, None)
    await lists(w, {"llama": 32_768}, {"llama": 8_192}, None)
    assert await listed(w) == {"llama": 8_192}
    urls = [one.url for one in w.engines]
    routable = (True, False, True)
    w.published.fleet(*(entry(f"demo-{n}", urls[n], routable=routable[n]) for n in range(3)))
    await w.until(lambda: w.router.pools.get("demo").ready == 2)
    assert await listed(w) == {"llama": 32_768}


async def test_an_unreported_length_is_null(world: Any) -> None:
    w = await world(None)
    await lists(w, None)
    assert await listed(w) == {"llama": None}


async def test_a_names_length_is_the_shortest_of_its_targets(world: Any) -> None:
    w = await world(None)
    async with engine() as spot:
        await second(w, spot)
        await lists(w, {"llama": 8_192})
        sample(w, "spot-0", {"llama": 4_096})
        split = [{"pool": "demo", "weight": 1}, {"pool": "spot", "weight": 1}]
        await known(w, {"chat": {"split": split}, "bot": {"pool": "demo", "adapter": {"name": "b"}}})
        there = w.router.pools.get("spot")
        await w.until(lambda: all(one.models for one in there.endpoints.values()))
        assert (await listed(w))["chat"] == 4_096


async def test_a_name_whose_model_no_instance_serves_is_reported_and_not_listed(world: Any) -> None:
    w = await world(None)
    await known(w, {"ghost": {"pool": "demo", "model": "gone"}, "bot": {"pool": "demo", "adapter": {"name": "b"}}})
    await lists(w, None)
    assert await ghosts(w) == []
    assert set(await listed(w)) == {"bot", "ghost", "llama"}
    await lists(w, {"llama": None})
    said = [
        f"model {name}: no instance of the pool demo serves {model}"
        for name, model in (("bot", "b"), ("ghost", "gone"))
    ]
    assert await ghosts(w) == said
    assert set(await listed(w)) == {"llama"}
    assert (await w.client.get("/v1/models/ghost")).status_code == 404
    await lists(w, {"llama": None, "gone": None})
    assert await ghosts(w) == said[:1]


async def test_a_name_that_its_fallback_serves_is_listed(world: Any) -> None:
    w = await world(None)
    await lists(w, {"llama": None})
    target = {"pool": "demo", "model": "gone", "fallback": [{"pool": "demo"}]}
    await known(w, {"ghost": target, "soon": {"pool": "demo", "adapter": {"name": "a", "source": "org/a"}}})
    assert set(await listed(w)) == {"ghost", "llama", "soon"}
    assert await ghosts(w) == ["model ghost: no instance of the pool demo serves gone"]


@pytest.mark.parametrize("models", [["chat"], ["none"]])
async def test_a_key_sees_the_models_that_it_may_use_and_a_request_without_a_key_sees_none(
    world: Any, models: list[str]
) -> None:
    w = await world(None)
    await known(w, {"chat": {"pool": "demo"}, "other": {"pool": "demo"}})
    w.published.keys(key_entry(KEY, models=models), required=("*",))
    await w.until(lambda: w.router.pools.auth.ring is not None and w.router.pools.auth.ring.by_hash)
    assert set(await listed(w, **BEARER)) == {"chat"} & set(models)
    for path in ("/v1/models", "/v1/models/llama"):
        assert (await w.client.get(path)).status_code == 401
        assert (await w.client.get(path, headers={"authorization": f"Bearer {KEY}x"})).status_code == 401
    assert (await w.client.get("/v1/models/other", headers=BEARER)).status_code == 404
    refused = await w.ask(model="nothing", headers=BEARER)
    message = refused.json()["error"]["message"]
    assert "other" not in message
    assert ("chat" in message) == ("chat" in models)


async def test_a_key_of_other_pools_sees_no_model_and_no_pool(world: Any) -> None:
    w = await world(None)
    w.published.keys(key_entry(KEY, pools=["elsewhere"]))
    await w.until(lambda: w.router.pools.auth.ring is not None and w.router.pools.auth.ring.by_hash)
    assert await listed(w, **BEARER) == {}
    assert await listed(w) == {"llama": None}
    refused = await w.ask(headers={**BEARER, "x-weir-pool": "nowhere"})
    assert refused.json()["error"]["message"].endswith("known: none")


async def test_a_standalone_router_keeps_the_lengths_that_its_engines_list(watch: Any) -> None:
    async with engine(plain(models=("llama", "other"), length=4_096)) as one:
        made, pools = watch(one)
        await made.step()
        assert {model.id: model.max_model_len for model in pools.models()} == {"llama": 4_096, "other": 4_096}
        made.close()
