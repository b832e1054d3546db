"""The fit of a sweep compared with loads that a real vLLM on an H200 served (docs/findings/gpu.md): no change may
make it worse."""

import pytest

from bench.gpu.compare import RECORDED, limits_of, record, requests_of, swept_of
from fleet.calibration.traffic import traffic_fit
from fleet.calibration.traffic.blocks import blocks_of, joined
from fleet.calibration.traffic.physical import KNOWN
from fleet.calibration.traffic.replayed import EngineConstants, errors_of, replay
from fleet.calibration.traffic.traffic_fit import FitStart, _Fit, _played
from fleet.engine.law import API_S, API_S_PER_TOKEN, law_of
from fleet.engine.profiles import profile

LARGEST = {  # |error| of the mean E2E; the second load fills the GPU, whose clock falls then
    "llama-3.1-8b": 0.04,
    "qwen3-14b": 0.07,
    "qwen3-30b-a3b": 0.2,
}


@pytest.mark.parametrize("model", LARGEST)
def test_a_sweep_predicts_loads_that_it_did_not_send(model: str) -> None:
    found = record(RECORDED / f"{model}.json.gz")
    limits = limits_of(found)
    swept = swept_of(found, limits)
    for load in found["loads"]:
        off = errors_of(replay(requests_of(load), EngineConstants(swept.law, swept.api_s, 0.0), limits).pairs)
        assert off.e2e_mean is not None
        assert abs(off.e2e_mean) < LARGEST[model], load["name"]


def test_replayed_blocks_of_a_full_load_have_their_original_queues() -> None:
    """Without the queue before them (at most 60 earlier requests, with up to 107 in flight), blocks replay up to 24
    % too fast."""
    found = record(RECORDED / "llama-3.1-8b.json.gz")
    limits = limits_of(found)
    swept = swept_of(found, limits)
    blocks = joined(blocks_of(requests_of(found["loads"][1])))
    for block in _played(blocks, EngineConstants(swept.law, swept.api_s, 0.0), limits):
        off = errors_of(block.pairs).e2e_mean
        assert off is not None
        assert abs(off) < 0.12


def test_a_fit_to_a_full_load_starts_nearer_than_the_ratio_of_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues multiply the error of a step, so steps slowed down like the TPOTs would be far too slow."""
    found = record(RECORDED / "llama-3.1-8b.json.gz")
    law = law_of(profile(found["gpu"], found["model"], 1))
    blocks = blocks_of(requests_of(found["loads"][1]))
    begun = _Fit(FitStart(EngineConstants(law, API_S, API_S_PER_TOKEN), KNOWN), limits_of(found), blocks[2:3])
    near = begun.scaled()
    monkeypatch.setattr(traffic_fit, "SCALED", (1.0,))
    assert near.loss < min(0.9 * begun.scaled().loss, begun.loss)
