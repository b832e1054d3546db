"""A preview's report on the load that it simulated."""

from dataclasses import replace

from controlplane.evidence.previews.analysis.compute import PreviewInputs, compute
from controlplane.evidence.traces.generated import generate
from controlplane.evidence.twin.simulation.tests.builders import MODEL, policy
from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.engine.engine_model import EngineModel, LoadRange

NARROW = replace(MODEL, calibrated=LoadRange((1, 500), (1, 20)))


def not_modelled(model: EngineModel) -> tuple[str, ...]:
    fleet = TwinFleet({"demo-0": model, "demo-1": model})
    parts = ((1, generate(3, 20.0)),)
    job = PreviewInputs(fleet, "demo", policy("lpwl"), ("default", 1), policy("round_robin"), parts)
    return compute(job, lambda _: None).not_modelled


def test_a_preview_reports_loads_outside_its_engines_calibration() -> None:
    (text,) = set(not_modelled(NARROW)) - set(not_modelled(MODEL))
    assert "new tokens in a prompt; the calibration did not" in text
