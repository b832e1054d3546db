"""A run says what of its load the calibration of its engines does not know."""

from dataclasses import replace

from controlplane.traces.generated import generate
from controlplane.twin.simulation.simulate import simulate
from controlplane.twin.simulation.tests.builders import MODEL
from controlplane.twin.simulation.types import TwinFleet, TwinOutcome
from fleet.engine.engine_model import EngineModel
from fleet.engine.load_range import LoadRange
from router.policy.schema import document

TRACE = generate(1, 60.0)


def played(*models: EngineModel) -> TwinOutcome:
    fleet = TwinFleet({f"chat-{number}": model for number, model in enumerate(models)})
    return simulate(fleet, document.parse(document.default("round_robin")), TRACE.requests, pacing="timestamps", seed=1)


def test_it_is_among_the_doubts_about_a_run() -> None:
    narrow = replace(MODEL, calibrated=LoadRange((1, 500), (1, 20)))
    outcome = played(narrow, narrow)
    (text,) = outcome.outside
    assert "requests see more than 20 new tokens in a prompt; the calibration did not" in text
    assert outcome.doubts == (*outcome.not_modelled, text)


def test_a_load_that_is_known_or_an_engine_without_calibration_gives_none() -> None:
    wide = replace(MODEL, calibrated=LoadRange((1, 500), (1, 200_000)))
    assert played(wide, MODEL).outside == ()
