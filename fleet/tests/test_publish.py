"""A pool's value in Redis is restored, whatever has happened to it there."""

import pytest
import redis

from fleet import services
from fleet.control.publish import publish_step
from fleet.jobs import DONE
from fleet.models import Calibration, Instance, Pool
from fleet.selectors import law_of_pool
from fleet.tests.world import document
from router.contract.redis import redis_keys
from router.tests.values import loaded

KEY = redis_keys.fleet_key("p")


@pytest.fixture
def pool(db: None, fake_kind: None, live_redis: redis.Redis) -> Pool:
    services.apply_fleet(document(0), "ada")
    assert publish_step() == ["p"]
    assert publish_step() == []
    return services.selectors.pool("p")


@pytest.mark.parametrize("value", ["garbage", "{}", '{"schema":1,"pool":"p"}', b"\xff\x00", ""])
def test_a_value_that_cannot_be_read_is_replaced(pool: Pool, live_redis: redis.Redis, value: str | bytes) -> None:
    live_redis.set(KEY, value)
    assert publish_step() == ["p"]
    assert loaded(live_redis.get(KEY))["model"] == "m"
    assert publish_step() == []


@pytest.mark.parametrize("key", [KEY, redis_keys.POOLS])
def test_a_key_of_another_type_is_replaced(pool: Pool, live_redis: redis.Redis, key: str) -> None:
    for spoilt in {KEY, key}:
        live_redis.delete(spoilt)
        live_redis.rpush(spoilt, "garbage")
    assert publish_step() == ["p"]
    assert loaded(live_redis.get(KEY))["model"] == "m"
    assert live_redis.smembers(redis_keys.POOLS) == {b"p"}


def test_a_pool_lists_the_keys_that_may_steer_its_engines(pool: Pool, live_redis: redis.Redis) -> None:
    Pool.objects.update(access={"trusted_keys": ["scheduler"]})
    publish_step()
    assert loaded(live_redis.get(KEY))["trusted_keys"] == ["scheduler"]


@pytest.mark.parametrize(
    ("server", "choice", "removed"),
    [
        *(("sglang", "auto", True), ("vllm", "auto", False), ("", "auto", False)),
        *(("sglang", "keep", False), ("vllm", "remove", True)),
    ],
)
def test_a_pool_publishes_whether_its_engines_get_the_billing_line(
    pool: Pool, live_redis: redis.Redis, server: str, choice: str, removed: bool
) -> None:
    Instance.objects.create(pool=pool, ordinal=0, name="p-0", wire={"server": server})
    Pool.objects.update(access={"billing_line": choice})
    publish_step()
    assert loaded(live_redis.get(KEY))["removes_billing_line"] is removed


@pytest.mark.parametrize(
    ("server", "named", "tokenizer"),
    [
        *(("sglang", "/models/m", "sglang:/models/m"), ("vllm", "/models/m", "/models/m")),
        *(("sglang", "sim", "sim"), ("sglang", "", "")),
    ],
)
def test_the_detected_server_is_the_kind_and_the_tokenizer_names_sglang_as_the_renderer(
    pool: Pool, live_redis: redis.Redis, server: str, named: str, tokenizer: str
) -> None:
    Instance.objects.create(pool=pool, ordinal=0, name="p-0", wire={"server": server, "tokenizer": named})
    publish_step()
    (published,) = loaded(live_redis.get(KEY))["instances"]
    assert (published["kind"], published.get("tokenizer", "")) == (server, tokenizer)


@pytest.mark.parametrize(
    ("engine", "cost", "equal"),
    [
        ({"gpu": "h100_sxm", "model_profile": "Qwen3-32B", "tp": 2}, 0.31 / 350, 31_300),
        ({"gpu": "h100_sxm", "model_profile": "Llama-3.1-8B"}, 0.78 / 350, 22_200),
        ({"gpu": "h100_sxm", "model_profile": "Qwen3-30B-A3B"}, 0.94 / 350, 9_900),
    ],
)
def test_a_pool_publishes_the_cost_of_context_on_its_engines(
    engine: dict[str, object], cost: float, equal: float
) -> None:
    law = law_of_pool(Pool(name="p", kind="sim", model="m", engine=engine))
    assert law is not None
    assert law.context_cost == pytest.approx(cost, rel=0.02)
    assert law.equal_cost_tokens == pytest.approx(equal, rel=0.02)


def test_a_measured_law_is_preferred_to_the_law_of_the_kind(db: None) -> None:
    pool = Pool(name="p", kind="vllm", model="m", engine={})
    assert law_of_pool(pool) is None
    names = ("fixed_s", "weights_s", "attention_s_per_pair", "api_s")
    constants = dict.fromkeys(names, 0.0) | {
        "compute_s_per_token": 4e-5,
        "allreduce_s_per_token": 1e-5,
        "kv_s_per_token": 1e-7,
    }
    Calibration.objects.create(pool="p", kind="vllm", model="m", status=DONE, constants=constants, seconds=60)
    law = law_of_pool(pool)
    assert law is not None
    assert law.context_cost == pytest.approx(0.002)
    assert law.equal_cost_tokens == 0.0, "no time of attention, no context at which it is as much"


@pytest.mark.parametrize("pool", [{"kind": "gone"}, {"kind": "sim", "engine": {"model_profile": "gone"}}])
def test_an_unknown_law_does_not_stop_routing(pool: dict[str, object]) -> None:
    assert law_of_pool(Pool(name="p", model="m", **pool)) is None
