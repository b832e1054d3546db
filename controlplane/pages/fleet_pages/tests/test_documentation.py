"""docs/fleet.md and the example documents agree with the code."""

import dataclasses
import re
from pathlib import Path

import pytest
from django.conf import settings

from fleet.kinds import KINDS
from fleet.models import State
from fleet.spec import document
from fleet.spec.fleet_spec import parse_fleet
from fleet.spec.sections import Access, Autoscale, Placement, Update
from fleet.tests.option_table import table
from router.contract import models

DOCS = Path(settings.BASE_DIR) / "docs"
PAGE = (DOCS / "fleet.md").read_text()
MODELS = Path(settings.BASE_DIR) / "examples" / "models.yaml"
EXAMPLES = sorted(set(MODELS.parent.glob("*.yaml")) - {MODELS})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_each_example_is_a_valid_document(path: Path) -> None:
    assert parse_fleet(document.load(path.read_text())).pools


def test_the_example_of_models_names_the_pools_of_its_fleet() -> None:
    targets = models.placed(models.parse(document.load(MODELS.read_text())))
    fleet = parse_fleet(document.load((MODELS.parent / "fleet-two-models.yaml").read_text()))
    assert {target.pool for _, _, target in targets} == {pool.name for pool in fleet.pools}


def test_the_documents_on_the_page_are_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert [parse_fleet(document.load(block)).pools[0].replicas for block in blocks] == [8, 2]


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("update", {field.name for field in dataclasses.fields(Update)}),
        ("placement", {field.name for field in dataclasses.fields(Placement)}),
        ("slo", {"ttft_p90_ms"}),
        ("access", set(Access.__struct_fields__)),
        ("autoscale", {field.name for field in dataclasses.fields(Autoscale)}),
    ],
)
def test_every_key_of_a_section_is_listed(section: str, names: set[str]) -> None:
    (table,) = re.findall(rf"^\| `{section}` \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    listed = {name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed == names


def test_every_state_is_explained() -> None:
    for state in State.values:
        assert f"| `{state}` |" in PAGE


def test_the_table_lists_every_option_as_declared() -> None:
    assert (DOCS / "options.csv").read_text() == table()


def test_every_kind_has_its_section() -> None:
    page = (DOCS / "kinds.md").read_text()
    assert [name for name in KINDS if f"## `{name}`" not in page] == []
