"""Each result of the twin states its expected deviation from a real engine."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.evidence.twin import expected_error
from controlplane.evidence.twin.expected_error import BUILT_IN, EXPERTS, TIERS, ExpectedError, described, of_calibration
from controlplane.evidence.twin.simulation.tests.builders import MODEL
from fleet.engine.tiers.model import TiersModel
from fleet.engine.tiers.sizes import KvLayout
from fleet.models import Calibration

DOC = Path(__file__).resolve().parents[5] / "docs" / "twin.md"


def test_a_calibration_by_a_sweep_expects_no_smaller_error_than_is_known_for_mixed_loads() -> None:
    good, poor = Calibration(ttft_error=0.01, tpot_error=0.01), Calibration(ttft_error=0.3, tpot_error=0.2)
    assert of_calibration(good) == ExpectedError(tpot=0.05, e2e=0.07, ttft_mean=0.10, ttft_p99=None)
    assert of_calibration(poor) == ExpectedError(tpot=0.2, e2e=0.2, ttft_mean=0.3, ttft_p99=None)


def test_a_fit_to_traffic_expects_the_error_on_held_out_requests() -> None:
    held_out = {"n": 120, "ttft_mean": -0.08, "ttft_p99": None, "tpot_mean": 0.03, "e2e_mean": 0.001}
    found = of_calibration(Calibration(held_out=held_out))
    assert found == ExpectedError(tpot=0.03, e2e=0.02, ttft_mean=0.08, ttft_p99=None)
    better = of_calibration(Calibration(held_out=dict.fromkeys(held_out, 0.0)))
    assert better == ExpectedError(tpot=0.02, e2e=0.02, ttft_mean=0.05, ttft_p99=0.3)


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (BUILT_IN["transferred"], "TPOT 15 %, E2E 15 %, mean TTFT 20 % of a warm engine; TTFT p99 unknown"),
        (None, ""),
    ],
)
def test_the_expected_error_is_described_with_its_unknown_parts(
    expected: dict[str, float | None] | None, text: str
) -> None:
    assert described(expected) == text


def test_remaining_errors_are_cautions() -> None:
    experts = replace(MODEL, law=replace(MODEL.law, experts_s=0.01, expert_share=0.06))
    assert expected_error.cautions([MODEL]) == ()
    assert expected_error.cautions([MODEL, experts]) == (EXPERTS,)
    assert expected_error.cautions([replace(MODEL, tiers=TiersModel(layout=KvLayout(131_072, 32), tiers=()))]) == (
        TIERS,
    )


def test_the_documentation_has_the_same_numbers() -> None:
    rows = re.findall(r"^\| `(profile|transferred)`[^|]*\|(.*)\|$", DOC.read_text(), re.M)
    found = {name: tuple(cell.strip() for cell in cells.split("|")[:4]) for name, cells in rows}
    shown = lambda value: "unknown" if value is None else f"{value * 100:g} %"  # noqa: E731
    assert found == {name: tuple(map(shown, error.values())) for name, error in BUILT_IN.items()}
