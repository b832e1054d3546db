"""docs/policies.md and docs/parameters.csv match the code on every strategy, rule and parameter."""

import json
import re
from pathlib import Path

import pytest

from router.policy.schema.parameters import PARAMETERS
from router.policy.strategies import STRATEGIES
from router.tests.policy.parameter_table import table

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "policies.md").read_text() if (ROOT / "docs" / "policies.md").exists() else ""


def test_the_table_lists_every_parameter_as_defined() -> None:
    assert (ROOT / "docs" / "parameters.csv").read_text() == table()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_has_its_section(strategy: str) -> None:
    _, _, section = PAGE.partition(f"\n### `{strategy}`\n")
    assert STRATEGIES[strategy].summary in section.partition("\n### ")[0]


def test_the_page_names_only_parameters_that_exist() -> None:
    sections = "|".join({path.partition(".")[0] for path in PARAMETERS})
    named = set(re.findall(rf"`((?:{sections})\.[a-z0-9_]+)`", PAGE))
    assert len(named) > 10
    assert named - PARAMETERS.keys() == set()


def test_every_route_shows_its_formula() -> None:
    assert {name for name, strategy in STRATEGIES.items() if f"`{strategy.formula}`" not in PAGE} == set()


def test_every_rule_is_explained() -> None:
    """The rule is a Pick's third argument; golden cases cover those that a strategy takes from a table."""
    sources = [*(ROOT / "router/policy/strategies").rglob("*.py"), ROOT / "router/policy/decide.py"]
    found = {rule for source in sources for rule in re.findall(r'(?:Pick\(|rule=)[^"]*"(\w+)"', source.read_text())}
    for path in (ROOT / "router/tests/policy/golden").glob("*.json"):
        found |= {case["expect"]["rule"] for case in json.loads(path.read_text())["cases"] if "rule" in case["expect"]}
    assert {"turn", "session", "least_decode", "least_prefill", "nobody", "weighted_draw"} <= found
    assert {name for name in found if f"`{name}`" not in PAGE} == set()
