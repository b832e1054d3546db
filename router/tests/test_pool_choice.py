"""Choose the pool for a request."""

import pytest

from router.contract.models import Alias, Target
from router.http.errors import ErrorResponse
from router.serving.pools import Pools
from router.tests.conftest import entry
from router.tests.test_aliases import named


def pools(**models):
    made = Pools()
    for name, model in models.items():
        made.get_or_add(name.replace("_", "-")).model = model
    made.changed()
    return made


def test_a_pool_is_chosen_by_its_model_or_its_name():
    made = pools(small="llama-8b", large="llama-70b")
    assert made.pick(None, "llama-70b").name == "large"
    assert made.pick(None, "small").name == "small"


def test_the_header_takes_precedence():
    made = pools(small="llama-8b", large="llama-70b")
    assert made.pick("large", "llama-8b").name == "large"


def test_a_body_without_a_model_goes_to_the_only_pool():
    assert pools(demo="llama").pick(None, "").name == "demo"


def test_a_body_without_a_model_is_refused_if_there_are_several_pools():
    with pytest.raises(ErrorResponse, match="model: the body names none; known: a, b"):
        pools(x="a", y="b").pick(None, "")


def test_pools_of_experiments_are_chosen_only_by_header():
    made = pools(demo="llama", exp_1="llama-exp")
    assert made.pick("exp-1", "llama").name == "exp-1"
    assert [model.id for model in made.models()] == ["llama"]
    with pytest.raises(ErrorResponse, match="model: there is no 'llama-exp'"):
        made.pick(None, "llama-exp")
    with pytest.raises(ErrorResponse):
        made.pick(None, "exp-1")


def test_the_first_pool_by_name_is_chosen_if_two_serve_one_model():
    assert pools(b="llama", a="llama").pick(None, "llama").name == "a"


async def test_each_model_is_listed_once_and_models_of_experiments_are_not_listed(world):
    w = await world(None)
    w.published.fleet(entry("e-0", w.engines[0].url), pool="exp-1", model="other")
    await w.until(lambda: w.router.pools.get("exp-1") is not None)
    listed = (await w.client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["llama"]
    assert listed["object"] == "list"


async def test_a_pool_of_an_experiment_serves_by_header_under_its_own_policy(world):
    w = await world(None)
    w.published.policy("exp-1", "least_requests")
    w.published.fleet(entry("e-0", w.engines[0].url), pool="exp-1", model="llama")
    await w.until(lambda: w.router.pools.get("exp-1") is not None and w.router.pools.get("exp-1").ready)
    response = await w.ask(headers={"x-weir-pool": "exp-1"})
    assert response.headers["x-weir-instance"] == "e-0"
    assert response.headers["x-weir-policy"] == "2"


def test_an_observed_pool_gets_no_requests_and_the_error_says_so():
    made = pools(a="llama", seen="llama", alone="other")
    made.get("seen").observed = made.get("alone").observed = True
    made.changed()
    assert made.pick(None, "llama").name == "a"
    assert [model.id for model in made.models()] == ["llama"]
    for header, model in (("seen", ""), (None, "other"), (None, "seen")):
        with pytest.raises(ErrorResponse, match="observed only: its requests do not pass through Weir"):
            made.pick(header, model)
    assert "observed only" in str(made.barred(None, "seen"))


def test_a_request_without_a_model_never_goes_to_an_observed_pool():
    made = pools(a="llama", seen="other")
    made.get("seen").observed = True
    made.changed()
    assert made.pick(None, "").name == "a"


@pytest.mark.parametrize("streamed", [False, True])
async def test_engines_never_see_a_pools_name_but_the_answer_carries_it(world, streamed):
    w = await world(named)
    answer = await w.ask(model="demo", stream=streamed)
    assert w.engines[0].received[-1].document["model"] == "llama"
    assert (answer.status_code, '"model":"demo"' in answer.text, "llama" in answer.text) == (200, True, False)
    assert (await w.receipt(answer))["model"] == "llama"
    assert [one["id"] for one in (await w.client.get("/v1/models")).json()["data"]] == ["llama"]
    for endpoint in w.router.pools.get("demo").endpoints.values():
        endpoint.models = {"demo": None}
    await w.ask(model="demo", stream=streamed)
    assert w.engines[0].received[-1].document["model"] == "demo"  # the name that the engines themselves list


def test_a_name_of_the_document_takes_precedence_over_a_pools():
    made = pools(small="llama-8b", large="llama-70b")
    made.take_listed({"small": Alias((Target("large"),))})
    assert {name: alias.split[0].pool for name, alias in made.names.items()} == {"small": "large", "large": "large"}
    assert [*made.aliases] == ["small"]
