"""/metrics is readable, and every metric is documented."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from router.contract.redis import redis_keys
from router.contract.values import sketch
from router.policy.schema.failure_parameters import FAILURE
from router.tests.conftest import entry

DOCS = Path(__file__).parents[2] / "docs"
# Grouped by the beginning of their names
DOCUMENTED = {
    "weir_router_": (DOCS / "router.md").read_text(),
    "weir_delivery_router_": (DOCS / "monitoring.md").read_text(),
}


async def families(w):
    text = (await w.client.get("/metrics")).text
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(family, **labels):
    return next(sample.value for sample in family.samples if labels.items() <= sample.labels.items())


async def test_every_metric_is_documented(world):
    w = await world(None)
    await w.ask(stream=True)
    names = await families(w)
    assert len(names) > 20
    for name, family in names.items():
        (documented,) = [text for begin, text in DOCUMENTED.items() if name.startswith(begin)]
        written = name + "_total" if family.type == "counter" else name
        assert f"`{written}`" in documented, f"{written} is not documented"


async def test_traffic_is_counted(world):
    w = await world(None)
    for _ in range(3):
        await w.ask(stream=True)
    await w.ask(model="nope")
    made = await families(w)
    assert value(made["weir_router_requests"], pool="demo", **{"class": "warm"}, outcome="ok") == 3
    assert value(made["weir_router_errors"], code="model_not_found") == 1
    assert value(made["weir_router_tokens"], kind="output") == 9
    ttft = made["weir_router_time_to_first_token_seconds"]
    assert next(s.value for s in ttft.samples if s.name.endswith("_count")) == 3
    assert value(made["weir_router_policy_version"], pool="demo") == 1


async def test_histograms_and_sketches_hold_the_longest_time_that_a_policy_lets_an_engine_take(world):
    w = await world(None)
    await w.ask(stream=True)
    longest_s = next(parameter.range[1] for parameter in FAILURE if parameter.name == "failure.first_byte_timeout_s")
    made = await families(w)
    for name in ("time_to_first_token_seconds", "request_seconds"):
        samples = made["weir_router_" + name].samples
        bounds = sorted({float(s.labels["le"]) for s in samples if s.name.endswith("_bucket")})
        assert bounds[-2:] == [longest_s, float("inf")]
        assert {300.0, 600.0} < set(bounds)
    kept = sketch.quantile({sketch.bucket(longest_s * 1000): 1}, 0.5)
    assert kept is not None
    assert abs(kept / (longest_s * 1000) - 1) <= sketch.RELATIVE_ERROR


async def test_the_pool_of_an_experiment_leaves_no_labels_behind(world):
    w = await world(None)
    w.published.fleet(entry("e-0", w.engines[0].url), pool="exp-1", model="llama")
    await w.until(lambda: w.router.pools.get("exp-1") and w.router.pools.get("exp-1").ready)
    await w.ask(headers={"x-weir-pool": "exp-1"})
    key = redis_keys.fleet_key("exp-1")
    w.published.client.delete(key)
    w.published.client.publish(redis_keys.CHANGED, key)
    await w.until(lambda: w.router.pools.get("exp-1") is None)
    assert "exp-1" not in (await w.client.get("/metrics")).text


async def test_health_and_metrics_answer_head(world):
    w = await world(None)
    for path in ("/healthz", "/metrics", "/v1/models"):
        response = await w.client.head(path)
        assert (response.status_code, response.content) == (200, b"")
