"""The document Models: what is allowed, and one clear error for everything else."""

import pytest

from router.contract import models
from router.contract.models import Adapter, Alias, Target
from router.contract.values.problem import InvalidInput

WHOLE = {
    "schema": 1,
    "models": {
        "chat-large": {
            "split": [{"pool": "h200", "weight": 90}, {"pool": "h100", "weight": 10, "model": "chat-large-fp8"}],
            "fallback": [{"pool": "spot"}],
            "on": ["saturated"],
        },
        "support-bot": {
            "pool": "h200",
            "adapter": {"name": "support-bot@v3", "source": "/lora/support-v3", "replicas": 4},
        },
    },
}


def wrong(**alias):
    with pytest.raises(InvalidInput) as caught:
        models.parse({"models": {"m": alias}})
    return [(problem.path.removeprefix("models.m"), problem.message) for problem in caught.value.problems]


def test_a_document_is_unchanged_by_parsing_and_writing():
    read = models.parse(WHOLE)
    assert read["support-bot"] == Alias((Target("h200", adapter=Adapter("support-bot@v3", "/lora/support-v3", 4)),))
    assert read["chat-large"].fallback == (Target("spot"),)
    assert models.dump(read) == WHOLE
    assert models.dump(models.parse(models.dump(read))) == WHOLE


def test_omitted_fields_take_their_defaults():
    alias = models.parse({"models": {"m": {"pool": "a", "fallback": [{"pool": "b"}]}}})["m"]
    assert (alias.split, alias.on) == ((Target("a"),), models.CONDITIONS)
    assert models.dump({"m": alias})["models"]["m"] == {"pool": "a", "fallback": [{"pool": "b"}]}


@pytest.mark.parametrize(
    ("alias", "path", "said"),
    [
        ({}, ".pool", "not the name of a pool"),
        ({"pool": "a", "split": [{"pool": "b"}]}, ".pool", "beside a split"),
        ({"split": []}, ".split", "not a list of targets"),
        ({"split": [{"pool": "a", "weight": 0}]}, ".split", "no target has a weight"),
        ({"split": [{"pool": "a", "weight": 1.5}]}, ".split[0].weight", "not a whole number within its limits"),
        ({"split": [{"pool": "a"}, {"pool": "a"}]}, ".split[1].pool", "there twice"),
        ({"pool": "a", "weight": 1}, ".weight", "unknown key"),
        ({"pool": "a", "on": ["saturated"]}, ".on", "says when to fall back, and there is no fallback"),
        ({"pool": "a", "fallback": [{"pool": "b"}], "on": ["bored"]}, ".on", "not a list of conditions"),
        ({"pool": "a", "model": "x", "adapter": {"name": "y"}}, ".model", "beside an adapter, whose name is the model"),
        ({"pool": "a", "adapter": {"name": "no name"}}, ".adapter.name", "not the name of an adapter"),
        ({"pool": "a", "adapter": {"name": "x", "source": "https://x/y"}}, ".adapter.source", "not a source"),
        ({"pool": "a", "adapter": {"name": "x", "replicas": 0}}, ".adapter.replicas", "not a whole number"),
    ],
)
def test_a_problem_is_named_by_its_path(alias, path, said):
    (found,) = wrong(**alias)
    assert found[0] == path
    assert found[1].startswith(said)


def test_a_name_that_looks_like_a_path_is_refused():
    with pytest.raises(InvalidInput, match="not the name of a model"):
        models.parse({"models": {"/models/llama": {"pool": "a"}}})


def test_one_adapter_has_one_source():
    both = {"a": "/lora/one", "b": "/lora/two"}
    document = {name: {"pool": "p", "adapter": {"name": "x", "source": source}} for name, source in both.items()}
    with pytest.raises(InvalidInput, match="another source"):
        models.parse({"models": document})


@pytest.mark.parametrize("document", [None, [], {}, {"models": []}, {"schema": 2, "models": {}}, {"models": {"m": 1}}])
def test_only_a_document_is_accepted(document):
    with pytest.raises(InvalidInput):
        models.parse(document)
