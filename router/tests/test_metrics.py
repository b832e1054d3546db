"""/metrics can be read, and each metric is documented."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from router.tests.conftest import entry

DOCS = Path(__file__).parents[2] / "docs"
# By the beginning of their names
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


async def test_the_pool_of_an_experiment_leaves_no_labels_behind(world):
    w = await world(None)
    w.published.fleet(entry("e-0", w.engines[0].url), pool="exp-1", model="llama")
    await w.until(lambda: w.router.pools.get("exp-1") and w.router.pools.get("exp-1").ready)
    await w.ask(headers={"x-weir-pool": "exp-1"})
    w.router.source.live._remove("exp-1")
    assert "exp-1" not in (await w.client.get("/metrics")).text


async def test_health_and_metrics_answer_head(world):
    w = await world(None)
    for path in ("/healthz", "/metrics", "/v1/models"):
        response = await w.client.head(path)
        assert (response.status_code, response.content) == (200, b"")
