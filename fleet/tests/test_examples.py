"""The example documents are taken as they are."""

from pathlib import Path

import pytest

from fleet.spec.document import load
from fleet.spec.fleet_spec import parse_fleet

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_a_fleet(path: Path) -> None:
    assert parse_fleet(load(path.read_text())).pools
