"""Documents of schema 1 keep their meaning in schema 2; the golden files date from schema 1."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.contract.values.problem import InvalidInput
from router.policy.schema import document
from router.policy.schema.diff import diff
from router.policy.strategies import STRATEGIES

OLD = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "golden/schema_1").glob("*.json")}


@pytest.fixture(params=sorted(OLD))
def old(request: pytest.FixtureRequest) -> dict[str, Any]:
    made: dict[str, Any] = OLD[request.param]
    return made


def test_every_strategy_of_schema_1_has_an_old_document() -> None:
    assert len(OLD) == 19
    assert set(OLD) <= set(STRATEGIES)


def test_an_old_document_is_upgraded_and_the_original_left_unchanged(old: dict[str, Any]) -> None:
    before = json.dumps(old["document"])
    assert document.upgrade(old["document"]) == old["upgraded"]
    assert json.dumps(old["document"]) == before
    assert document.sha256(old["document"]) == old["sha256"]


def test_an_upgrade_of_an_upgraded_document_changes_nothing(old: dict[str, Any]) -> None:
    assert document.upgrade(old["upgraded"]) == old["upgraded"]


def test_an_old_document_is_parsed_as_its_upgrade(old: dict[str, Any]) -> None:
    policy = document.parse(old["document"])
    assert policy == document.parse(old["upgraded"])
    dumped = document.dump(policy)
    for section, values in old["upgraded"].items():  # parameters added later have their defaults
        assert dumped[section] == values or dumped[section].items() >= values.items()


def test_an_upgraded_document_decides_as_the_old_one_did(old: dict[str, Any]) -> None:
    assert diff(old["document"], old["upgraded"]) == ()
    assert diff(old["upgraded"], old["document"]) == ()


def test_paths_of_schema_2_change_an_old_document() -> None:
    old = OLD["cache_aware"]["document"]
    assert document.apply_overrides(old, {"strategy.hit_weight": 3})["strategy"]["hit_weight"] == 3
    assert document.apply_overrides(old, {"strategy.name": "lpwl"})["strategy"] == {"name": "lpwl"}
    assert document.parse({"schema": 1}) == document.parse({})


def test_a_document_with_both_names_is_refused() -> None:
    with pytest.raises(InvalidInput, match="route: unknown section"):
        document.parse({"route": {"name": "lpwl"}, "strategy": {"name": "lpwl"}})


@pytest.mark.parametrize("schema", [{}, {"schema": 2}])
def test_a_current_document_with_the_old_name_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="route: unknown section"):
        document.parse({**schema, "route": {"name": "lpwl"}})


def test_a_document_of_an_unknown_schema_can_be_compared() -> None:
    (change,) = diff(document.default(), {**document.default(), "schema": 9, "flow": {"heavy": "offload"}})
    assert change.path == "flow.heavy"
