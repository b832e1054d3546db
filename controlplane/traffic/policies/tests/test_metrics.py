import time

import pytest

from controlplane.traffic.policies import services
from controlplane.traffic.policies.metrics import METRICS, policy_metrics
from controlplane.traffic.policies.tests.conftest import OTTO
from router.contract.redis import redis_keys, staleness
from router.contract.values import sketch
from router.policy.schema.parameters import PARAMETERS
from router.tests.values import stored


def window(**values: list[float]) -> dict:
    sketches: dict = {}
    for name, observed in values.items():
        merged: dict = {}
        for value in observed:
            sketch.add(merged, value)
        sketches[name] = merged
    return {"n": 1, "retries": 3, **sketches}


@pytest.fixture
def fleet(live_redis):
    now = time.time()
    here = {"epoch": 1, "url": "http://127.0.0.1:1", "state": "ready", "routable": True}
    instances = [{"id": name, **here} for name in ("demo-0", "demo-1")]
    live_redis.set(redis_keys.fleet_key("demo"), stored({"pool": "demo", "at": now, "instances": instances}))
    for name, kv, at in (("demo-0", 0.25, now), ("demo-1", 0.5, now), ("demo-2", 0.99, now)):
        sample = {"id": name, "epoch": 1, "at": at, "kv_usage": kv, "waiting": 4}
        live_redis.set(redis_keys.instance_key(name), stored(sample))
    for number, inflight in ((1, {"demo-0": [2, 500, 1]}), (2, {"demo-0": [3, 700, 1], "demo-9": [99, 9, 9]})):
        name = f"router-{number}"
        classes = {
            "demo": {
                "warm": window(new_tokens=[100.0] * 9),
                "heavy": window(new_tokens=[30_000.0], hit_percent=[80.0]),
            },
            "night": {"warm": window(new_tokens=[1e6] * 50)},
        }
        live_redis.zadd(redis_keys.ROUTERS, {name: now})
        value = {
            "id": name,
            "at": now,
            "inflight": inflight,
            "classes": classes,
            "queued": {"demo": {"warm": number}, "night": {"heavy": 9}},
        }
        live_redis.set(redis_keys.router_key(name), stored(value))
    return live_redis


def test_windows_of_all_routers_and_classes_are_one_distribution(fleet):
    figure = policy_metrics(["demo"])["class.new_tokens_p90"]
    assert figure.n == 20
    assert figure.value == pytest.approx(100, rel=0.03)
    assert not figure.is_thin


def test_shares_are_shown_as_shares(fleet):
    figure = policy_metrics(["demo"])["class.hit_share_p50"]
    assert figure.value == pytest.approx(0.8, rel=0.03)
    assert figure.is_thin


def test_load_is_the_sum_over_all_routers_and_instances_of_the_pool(fleet):
    figures = policy_metrics(["demo"])
    assert figures["instance.running_max"].value == 5
    assert figures["instance.prefill_tokens_max"].value == 1200
    assert figures["instance.prefill_ratio"].value == 2
    assert figures["router.retries_per_min"].value == 12
    assert figures["queue.waiting"].value == 3


def test_samples_of_other_pools_do_not_count(fleet):
    assert policy_metrics(["demo"])["instance.kv_usage_max"].value == 0.5


def test_an_offline_instances_sample_does_not_count(fleet):
    at = time.time() - staleness.SAMPLE_OFFLINE_S - 1
    old = {"id": "demo-1", "epoch": 1, "at": at, "kv_usage": 0.9, "waiting": 0}
    fleet.set(redis_keys.instance_key("demo-1"), stored(old))
    assert policy_metrics(["demo"])["instance.kv_usage_max"].value == 0.25


def test_without_traffic_figures_have_no_values(live_redis):
    assert {figure.value for figure in policy_metrics(["demo"]).values()} == {None}


def test_without_redis_there_are_no_figures(redis_away):
    assert policy_metrics(["demo"]) == {}


def test_every_metric_that_a_parameter_names_is_computed():
    assert {p.metric for p in PARAMETERS.values() if p.metric} <= set(METRICS)


def test_the_page_of_a_policy_and_its_editor_show_live_metrics(fleet, pool, policy, otto_client):
    services.open_draft(policy, OTTO)
    for path in ("/policies/default/", "/policies/default/draft"):
        content = otto_client.get(path).content.decode()
        assert "highest KV usage of an instance, now" in content
        assert "50 %" in content
