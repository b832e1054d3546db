"""A run reports which part of its load is outside the calibration of its engines."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.calibration import RECORDED, SHIFTS, TrueEngine, engines, own_engines, traffic
from controlplane.evidence.traces.generated import generate
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.tests.builders import MODEL
from controlplane.evidence.twin.simulation.types import TwinFleet, TwinOutcome
from fleet.calibration.traffic.recorded import served
from fleet.engine.engine_model import EngineModel, LoadRange, RequestLoad
from router.policy.schema import document

TRACE = generate(1, 60.0)
DATA = os.environ.get("WEIR_TRACE_DIR")
ALIKE = {name: shift for name, shift in SHIFTS.items() if "alike" in shift}


def played(*models: EngineModel) -> TwinOutcome:
    fleet = TwinFleet({f"chat-{number}": model for number, model in enumerate(models)})
    return simulate(fleet, document.parse(document.default("round_robin")), TRACE.requests, pacing="timestamps", seed=1)


def test_a_load_outside_the_calibration_is_among_the_doubts_about_a_run() -> None:
    narrow = replace(MODEL, calibrated=LoadRange((1, 500), (1, 20)))
    outcome = played(narrow, narrow)
    (text,) = outcome.outside
    assert "requests see more than 20 new tokens in a prompt; the calibration did not" in text
    assert outcome.doubts == (*outcome.not_modelled, text)


def test_a_load_within_the_calibration_or_engines_without_calibration_cause_no_doubts() -> None:
    wide = replace(MODEL, calibrated=LoadRange((1, 500), (1, 200_000)))
    assert played(wide, MODEL).outside == ()


@pytest.mark.parametrize("shift", ALIKE.values(), ids=ALIKE)
@pytest.mark.parametrize("engine", list(own_engines()), ids=lambda engine: engine.name)
def test_equal_requests_do_not_count_as_another_load(engine: TrueEngine, shift: dict[str, float]) -> None:
    """For such a load the stated error of the calibration is not the real one: docs/findings/reproduced.md."""
    assert outside(engine, shift)


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="WEIR_TRACE_DIR has the measured steps")
@pytest.mark.parametrize("shift", ALIKE.values(), ids=ALIKE)
def test_engines_with_measured_steps_cause_no_doubts_either(shift: dict[str, float]) -> None:
    assert all(outside(engine, shift) for engine in engines(Path(str(DATA))))


def outside(engine: TrueEngine, shift: dict[str, float]) -> tuple[str, ...]:
    requests = traffic(engine, shift, seed=1)
    known = RequestLoad.of([served(requests[:RECORDED])]).range
    return RequestLoad.of([served(requests[RECORDED:])]).outside(known)
