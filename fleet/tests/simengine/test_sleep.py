"""Sleep as vLLM offers it: the KV cache goes, requests are refused, the process stays and wakes."""

import pytest

from fleet.tests.simengine.conftest import Sim

PROMPT = "once upon a time " * 40


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_that_sleeps_refuses_requests_until_it_is_woken(sim: Sim, level: int) -> None:
    sim.complete(PROMPT)
    assert sim.http.post(f"/sleep?level={level}").status_code == 200
    assert sim.http.get("/is_sleeping").json() == {"is_sleeping": True}
    assert sim.http.get("/health").status_code == 200
    refused = sim.post("/v1/completions", {"prompt": PROMPT})
    assert (refused.status_code, "asleep" in refused.text) == (503, True)
    assert sim.http.post("/wake_up").status_code == 200
    assert sim.http.get("/is_sleeping").json() == {"is_sleeping": False}
    before = sim.metrics()["vllm:prefix_cache_hits_total"]
    sim.complete(PROMPT)
    assert sim.metrics()["vllm:prefix_cache_hits_total"] == before, "what was cached is gone"
