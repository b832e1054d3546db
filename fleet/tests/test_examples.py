"""The example documents are valid as they are."""

from pathlib import Path

import pytest

from fleet.spec.document import load
from fleet.spec.fleet_spec import parse_fleet
from router.contract.models import parse, placed

FOLDER = Path(__file__).resolve().parents[2] / "examples"
MODELS = FOLDER / "models.yaml"
EXAMPLES = sorted({*FOLDER.glob("*.yaml")} - {MODELS})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_each_example_is_a_valid_fleet(path: Path) -> None:
    assert parse_fleet(load(path.read_text())).pools


def test_the_models_name_pools_of_their_fleet() -> None:
    pools = {pool.name for pool in parse_fleet(load((FOLDER / "fleet-two-models.yaml").read_text())).pools}
    assert {target.pool for _, _, target in placed(parse(load(MODELS.read_text())))} == pools
