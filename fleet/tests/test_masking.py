"""Hide engines' secrets wherever documents are shown."""

from typing import Any

import pytest

from fleet.spec.fleet_spec import InvalidFleet, PoolSpec, dump_fleet, parse_fleet
from fleet.spec.masking import change_shown, pool_shown, shown

ENGINE = {"environment": {"A": "x", "HF_TOKEN": "y", "EMPTY": ""}, "arguments": ["--api-key", "z"], "seed": 1}
HIDDEN_ENGINE = {
    "environment": {"A": "(hidden)", "HF_TOKEN": "(hidden)", "EMPTY": ""},
    "arguments": ["--api-key", "(hidden)"],
    "seed": 1,
}


def document(**engine: Any) -> dict[str, Any]:
    pool = {"name": "p", "model": "m", "kind": "vllm", "engine": engine}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": [pool]}}


def test_every_variable_and_each_secret_argument_is_hidden_wherever_it_is() -> None:
    assert shown({"spec": {"pools": [{"name": "p", "engine": ENGINE}]}}) == {
        "spec": {"pools": [{"name": "p", "engine": HIDDEN_ENGINE}]}
    }
    assert pool_shown(PoolSpec("p", "m", "vllm", engine=ENGINE)).engine == HIDDEN_ENGINE


def test_only_values_of_that_shape_are_masked_as_options() -> None:
    """A label may be named environment."""
    value = {"labels": {"environment": "prod"}, "arguments": "none", "n": None, "list": [1, "a"]}
    assert shown(value) == value


def test_a_changed_variable_is_marked_and_not_shown() -> None:
    assert change_shown("engine.environment", {"A": "1", "B": "2"}, {"A": "1", "B": "3", "C": "4"}) == (
        {"A": "(hidden)", "B": "(hidden)"},
        {"A": "(hidden)", "B": "(hidden, changed)", "C": "(hidden)"},
    )
    assert change_shown("engine.environment", None, {"A": "1"}) == (None, {"A": "(hidden)"})
    assert change_shown("engine.seed", 1, 2) == (1, 2)


@pytest.mark.parametrize("mark", ["(hidden)", "(hidden, changed)"])
def test_a_document_with_hidden_values_is_not_applied(mark: str) -> None:
    with pytest.raises(InvalidFleet) as refused:
        parse_fleet(document(environment={"A": mark, "B": "b"}, arguments=["--x", "--hf-token=(hidden)"]))
    assert [problem.path for problem in refused.value.problems] == [
        "spec.pools[0].engine.environment.A",
        "spec.pools[0].engine.arguments[1]",
    ]
    assert "read the document with the scope fleet:write" in str(refused.value)


def test_a_document_with_its_values_is_applied() -> None:
    given = document(environment={"A": "a"}, arguments=["--api-key", "k"])
    assert dump_fleet(parse_fleet(given))["spec"]["pools"][0]["engine"] == given["spec"]["pools"][0]["engine"]
