"""docs/policies.md tells of every route, every rule and every parameter what the code says."""

import json
import re
from pathlib import Path

import pytest

from router.contract.fields import number
from router.policy.schema.parameter import Parameter
from router.policy.schema.parameters import PARAMETERS
from router.policy.strategies import STRATEGIES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "policies.md").read_text() if (ROOT / "docs" / "policies.md").exists() else ""


def row(parameter: Parameter) -> str:
    """The parameter's line in the page."""
    default = number(parameter.default) if parameter.kind in ("int", "float") else str(parameter.default)
    allowed = re.sub("^(a number from|one of) ", "", parameter.allowed.replace("a whole number from", "int,"))
    return f"| `{parameter.path}` | {parameter.title} | {default} | {allowed} | {parameter.help} |"


@pytest.mark.parametrize("parameter", PARAMETERS.values(), ids=PARAMETERS)
def test_every_parameter_has_its_line(parameter: Parameter) -> None:
    assert row(parameter) in PAGE.splitlines()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_has_its_section(strategy: str) -> None:
    _, _, section = PAGE.partition(f"\n### `{strategy}`\n")
    assert STRATEGIES[strategy].summary in section.partition("\n### ")[0]


def test_the_page_names_no_parameter_that_does_not_exist() -> None:
    named = set(re.findall(r"^\| `([a-z]+\.[a-z0-9_]+)` \|", PAGE, re.MULTILINE))
    assert named == set(PARAMETERS)


def test_every_route_shows_its_formula() -> None:
    assert {name for name, strategy in STRATEGIES.items() if f"`{strategy.formula}`" not in PAGE} == set()


def test_every_rule_is_explained() -> None:
    """A Pick's third argument; those that a route takes from a table by name are in its golden cases."""
    sources = [*(ROOT / "router/policy/strategies").glob("*.py"), ROOT / "router/policy/decide.py"]
    found = {rule for source in sources for rule in re.findall(r'(?:Pick\(|rule=)[^"]*"(\w+)"', source.read_text())}
    for path in (ROOT / "router/tests/policy/golden").glob("*.json"):
        found |= {case["expect"]["rule"] for case in json.loads(path.read_text())["cases"] if "rule" in case["expect"]}
    assert {"turn", "session", "least_decode", "least_prefill", "nobody", "weighted_draw"} <= found
    assert {name for name in found if f"`{name}`" not in PAGE} == set()
