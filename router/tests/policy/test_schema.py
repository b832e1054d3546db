"""The JSON Schema that the API publishes."""

import json

import pytest

from router.policy.schema import document
from router.policy.schema.json_schema import json_schema
from router.policy.schema.parameters import PARAMETERS
from router.policy.strategies import STRATEGIES
from router.tests.policy import checker


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_default_of_every_strategy_fits_the_schema(strategy: str) -> None:
    assert checker.valid(json_schema(), document.default(strategy))


@pytest.mark.parametrize(
    "value",
    [
        {"classes": {"heavy_new_tokens": 1}},
        {"classes": {"typo": 1}},
        {"strategy": {"name": "lpwl", "hit_weight": 1}},
        {"strategy": {"hit_weight": 1}},
        {"schema": 3},
        {"admission": {"refuse_status": 500}},
    ],
)
def test_the_schema_refuses_what_the_parser_refuses(value: object) -> None:
    assert not checker.valid(json_schema(), value)


def test_the_schema_has_title_unit_limits_and_metric_of_every_parameter() -> None:
    text = json.dumps(json_schema())
    for parameter in PARAMETERS.values():
        if parameter.path != "strategy.name":
            assert json.dumps(parameter.title) in text
            assert json.dumps(parameter.help) in text
    heavy = json_schema()["properties"]["classes"]["properties"]["heavy_new_tokens"]
    assert heavy == {
        "title": "Heavy threshold",
        "description": "Fewer requests count as heavy.",
        "type": "integer",
        "default": 40_000,
        "minimum": 256,
        "maximum": 1_000_000,
        "x-unit": "tokens",
        "x-metric": "class.new_tokens_p90",
    }
