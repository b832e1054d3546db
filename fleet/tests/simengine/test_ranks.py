"""Data-parallel ranks behind one address, as vLLM serves them."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet.tests.simengine.conftest import Sim, StartSim

pytestmark = pytest.mark.slow

PROMPT = "sixteen tokens of four bytes each, so one block holds 64 bytes. " * 8  # 128 tokens
ASKED = {"prompt": PROMPT + "and more", "max_tokens": 1, "ignore_eos": True}
HEADER = "X-data-parallel-rank"


def test_each_rank_has_its_own_cache_metrics_and_events(start_sim: StartSim) -> None:
    sim = start_sim(**{"data-parallel-size": 3, "data-parallel-start-rank": 3})

    def cached(rank: str) -> int:
        answer = sim.http.post("/v1/completions", json=ASKED, headers={HEADER: rank})
        assert answer.status_code == 200, answer.text
        return int((answer.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0))

    assert [cached(rank) for rank in ("0", "0", "2", "0", "2")] == [0, 128, 0, 128, 128]
    page = sim.http.get("/metrics").text
    lines = [line for line in page.splitlines() if line.startswith("vllm:prompt_tokens_total")]
    assert [(line.partition('engine="')[2][:1], line.split()[-1]) for line in lines] == [
        ("3", "390.0"), ("4", "0.0"), ("5", "260.0"),
    ]  # fmt: skip
    assert page.count("# TYPE vllm:prompt_tokens_total counter") == 1
    sources = sim.http.get("/kv_event_sources").json()
    assert list(sources) == ["3", "4", "5"]  # vLLM numbers sources within the group but the header within the engine
    assert len({source["endpoint"] for source in sources.values()}) == 3


def test_a_rank_out_of_range_is_refused_with_vllms_message(start_sim: StartSim) -> None:
    sim = start_sim(**{"data-parallel-size": 2})
    for rank in ("2", "-1"):
        answer = sim.http.post("/v1/completions", json=ASKED, headers={HEADER: rank})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == f"data_parallel_rank {rank} is out of range [0, 2)."
    assert sim.http.post("/v1/completions", json=ASKED, headers={HEADER: "first"}).status_code == 200


def test_without_the_header_the_engine_distributes_requests(start_sim: StartSim) -> None:
    sim = start_sim(**{"data-parallel-size": 2})
    for _ in range(6):
        assert sim.http.post("/v1/completions", json=ASKED).status_code == 200
    lines = [line for line in sim.http.get("/metrics").text.splitlines() if line.startswith("vllm:prompt_tokens_total")]
    assert [line.split()[-1] for line in lines] == ["390.0", "390.0"]


def statuses(sim: Sim) -> list[int]:
    return [sim.http.post("/v1/completions", json=ASKED, headers={HEADER: rank}).status_code for rank in "01"]


def test_all_ranks_sleep_and_forget_together(start_sim: StartSim) -> None:
    sim = start_sim(**{"data-parallel-size": 2})
    assert sim.http.post("/sleep?level=2").status_code == 200
    assert [sim.http.post("/v1/completions", json=ASKED, headers={HEADER: rank}).status_code for rank in "01"] == [
        503,
        503,
    ]
    sim.http.post("/wake_up?tags=weights")
    sim.http.post("/collective_rpc", json={"method": "reload_weights"})
    sim.http.post("/wake_up")
    assert [sim.http.post("/v1/completions", json=ASKED, headers={HEADER: rank}).status_code for rank in "01"] == [
        200,
        200,
    ]
    assert sim.http.post("/reset_prefix_cache", content=b"").json() == {"success": True}


def test_ranks_of_a_mixture_of_experts_step_together(start_sim: StartSim) -> None:
    """The engine's time for an answer on one rank includes the prompt that another rank computes."""
    sim = start_sim(**{"data-parallel-size": 2, "gpu": "h20_sxm", "model-profile": "Qwen3-30B-A3B", "time-scale": 2})

    def seconds(of: str, rank: int) -> float:
        page = sim.http.get("/metrics").text
        [found] = re.findall(rf'^vllm:{of}_seconds_sum.*engine="{rank}".* (\S+)$', page, re.MULTILINE)
        return float(found)

    def answer() -> float:
        before = seconds("e2e_request_latency", 0)
        asked = {**ASKED, "max_tokens": 300}
        assert sim.http.post("/v1/completions", json=asked, headers={HEADER: "0"}).status_code == 200
        return seconds("e2e_request_latency", 0) - before

    def read() -> None:
        time.sleep(0.2)
        asked = {**ASKED, "prompt": "a long prompt " * 4_000}
        assert sim.http.post("/v1/completions", json=asked, headers={HEADER: "1"}).status_code == 200

    alone = answer()
    with ThreadPoolExecutor(1) as other:
        reading = other.submit(read)
        beside = answer()
        reading.result()
    prompt = seconds("request_prefill_time", 1)
    assert prompt > 0.3
    assert beside - alone == pytest.approx(prompt, rel=0.1)
