"""What a draft saves a day: tokens that it does not compute, their GPU-hours, their price."""

import pytest

from controlplane.previews.analysis.saving import saving_of
from controlplane.previews.display import saving
from controlplane.twin.simulation.types import TwinFleet
from fleet.kinds import KINDS
from fleet.kinds.kind import Launch
from fleet.kinds.option import build

SIM = KINDS["sim"]
assert SIM.twin_model is not None
ENGINE = SIM.twin_model(build(SIM.spec, {}), Launch("p-0", "m", "127.0.0.1", {}, "python")).engine
FLEET = TwinFleet({"p-0": ENGINE, "p-1": ENGINE})


def test_tokens_found_in_caches_are_gpu_hours_and_dollars() -> None:
    found = saving_of({"live": 1_000.0, "draft": 900.0}, FLEET, 2, 5.0)
    assert found is not None
    hours = 100 * 86_400 * ENGINE.law.compute_s_per_token / 3_600 * 2
    assert found == {
        "new_tokens": 8_640_000,
        "gpu_hours": pytest.approx(hours, rel=1e-3),
        "dollars": pytest.approx(5 * hours, rel=1e-3),
    }


def test_a_draft_that_computes_more_costs_more() -> None:
    found = saving_of({"live": 900.0, "draft": 1_000.0}, FLEET, 1, 5.0)
    assert found is not None
    assert found["new_tokens"] == -8_640_000
    assert saving(found).startswith("8,640,000 prompt tokens more to compute, ")
    assert "$" in saving(found)


def test_it_is_unknown_without_answers_and_has_no_price_without_gpus() -> None:
    assert saving_of({"live": None, "draft": 1.0}, FLEET, 1, 5.0) is None
    assert saving(None) == "–"
    found = saving_of({"live": 2.0, "draft": 1.0}, FLEET, 0, 5.0)
    assert found is not None
    assert found["dollars"] is None
    assert "$" not in saving(found)
