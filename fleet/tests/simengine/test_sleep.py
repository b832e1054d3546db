"""Sleep as vLLM offers it: the KV cache is dropped and requests are refused, but the process stays and can wake."""

import pytest

from fleet.tests.simengine.conftest import Sim

PROMPT = "once upon a time " * 40
RELOAD = {"method": "reload_weights"}


def wake(sim: Sim, level: int) -> None:
    if level == 1:
        assert sim.http.post("/wake_up").status_code == 200
        return
    assert sim.http.post("/wake_up?tags=weights").status_code == 200
    assert sim.http.post("/collective_rpc", json=RELOAD).status_code == 200
    assert sim.http.get("/is_sleeping").json() == {"is_sleeping": True}, "the KV cache still sleeps"
    assert sim.http.post("/wake_up?tags=kv_cache").status_code == 200


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_that_sleeps_refuses_requests_until_it_is_woken(sim: Sim, level: int) -> None:
    sim.complete(PROMPT)
    assert sim.http.post(f"/sleep?level={level}").status_code == 200
    assert sim.http.get("/is_sleeping").json() == {"is_sleeping": True}
    assert sim.http.get("/health").status_code == 200
    refused = sim.post("/v1/completions", {"prompt": PROMPT})
    assert (refused.status_code, "asleep" in refused.text) == (503, True)
    wake(sim, level)
    assert sim.http.get("/is_sleeping").json() == {"is_sleeping": False}
    before = sim.metrics()["vllm:prefix_cache_hits_total"]
    sim.complete(PROMPT)
    assert sim.metrics()["vllm:prefix_cache_hits_total"] == before, "what was cached is gone"


def test_discarded_weights_give_no_answer_until_they_are_reloaded(sim: Sim) -> None:
    sim.http.post("/sleep?level=2")
    assert sim.http.post("/collective_rpc", json=RELOAD).status_code == 500, "the weights are asleep"
    assert sim.http.post("/wake_up").status_code == 200
    assert sim.http.get("/is_sleeping").json() == {"is_sleeping": False}
    answer = sim.post("/v1/completions", {"prompt": PROMPT})
    assert (answer.status_code, "weights were discarded" in answer.text) == (500, True)
    assert sim.http.post("/collective_rpc", json=RELOAD).status_code == 200
    assert sim.post("/v1/completions", {"prompt": PROMPT}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/sleep?level=3", None),
        ("/sleep?level=soon", None),
        ("/wake_up?tags=everything", None),
        ("/collective_rpc", {"method": "shutdown"}),
    ],
)
def test_options_unknown_to_sleep_mode_are_refused(sim: Sim, path: str, body: object) -> None:
    assert sim.http.post(path, json=body).status_code == 400
    assert sim.http.get("/is_sleeping").json() == {"is_sleeping": False}
