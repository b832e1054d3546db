"""docs/fleet.md and the example documents say what the code does."""

import re
from pathlib import Path

import pytest
from django.conf import settings

from fleet import document
from fleet.kinds.option import options_of
from fleet.kinds.sim import SimSpec
from fleet.models import State
from fleet.spec import parse_fleet

PAGE = (Path(settings.BASE_DIR) / "docs" / "fleet.md").read_text()
EXAMPLES = sorted((Path(settings.BASE_DIR) / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_each_example_is_a_valid_document(path: Path) -> None:
    assert parse_fleet(document.load(path.read_text())).pools


def test_the_document_on_the_page_is_valid() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert parse_fleet(document.load(block)).pools[0].replicas == 8


def test_every_state_is_explained() -> None:
    for state in State.values:
        assert f"| `{state}` |" in PAGE


def test_every_option_is_listed_with_its_limits() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)$", PAGE, re.MULTILINE))
    for option in options_of(SimSpec):
        row = rows[option.name]
        if option.choices:
            assert all(f"`{choice}`" in row for choice in option.choices), option.name
        else:
            assert f" {option.minimum} to {option.maximum} " in row, option.name
        assert option.default is None or f" {option.default} " in row or f"`{option.default}`" in row
