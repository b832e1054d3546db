"""A sweep's fit beside loads that a real vLLM on an H200 served (docs/measured.md): no change makes it worse."""

import pytest

from bench.gpu.compare import RECORDED, limits_of, record, requests_of, swept_of
from fleet.calibration.replayed import EngineConstants, errors_of, replay

LARGEST = {  # |error| of the mean E2E; the second load fills the GPU, whose clock falls then
    "llama-3.1-8b": 0.04,
    "qwen3-14b": 0.07,
    "qwen3-30b-a3b": 0.2,
}


@pytest.mark.parametrize("model", LARGEST)
def test_a_sweep_foretells_loads_that_it_did_not_send(model: str) -> None:
    found = record(RECORDED / f"{model}.json.gz")
    limits = limits_of(found)
    swept = swept_of(found, limits)
    for load in found["loads"]:
        off = errors_of(replay(requests_of(load), EngineConstants(swept.law, swept.api_s, 0.0), limits).pairs)
        assert off.e2e_mean is not None
        assert abs(off.e2e_mean) < LARGEST[model], load["name"]
