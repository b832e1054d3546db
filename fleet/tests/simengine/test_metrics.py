"""/metrics has vLLM's names, and its numbers add up."""

import pytest

from fleet.engine.law import chunk_pairs, law_of
from fleet.engine.power import GH100, IDLE, LIMIT_W
from fleet.engine.profiles import MEMORY_USED, kept_bytes, profile
from fleet.simengine.metrics import histogram_lines
from fleet.tests.engine.builders import api_s
from fleet.tests.simengine.conftest import FAST, Sim, StartSim
from router.contract.metrics.metrics_page import Histogram

GAUGES = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]
COUNTERS = [
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total{finished_reason=stop}",
    "vllm:request_success_total{finished_reason=length}",
    "vllm:request_success_total{finished_reason=abort}",
    *(f"vllm:prompt_tokens_by_source_total{{source={s}}}" for s in ("local_compute", "local_cache_hit")),
    *(f"vllm:prompt_tokens_cached_by_source_total{{source={s}}}" for s in ("device", "host", "disk", "p2p")),
]
HISTOGRAMS = [
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:iteration_tokens_total",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_params_max_tokens",
]


def test_every_metric_exists_before_the_first_request(sim: Sim) -> None:
    metrics = sim.metrics()
    histograms = [f"{name}_{part}" for name in HISTOGRAMS for part in ("sum", "count", "bucket{le=+Inf}")]
    assert set(GAUGES + COUNTERS + histograms) <= set(metrics)
    assert metrics["weir_sim_time_scale"] == FAST
    assert 0 <= metrics["weir_sim_lag_seconds"] < 60


def test_the_size_of_the_cache_is_reported(start_sim: StartSim) -> None:
    page = start_sim(kv_blocks=1234, block_size=32).http.get("/metrics").text
    (line,) = [line for line in page.splitlines() if line.startswith("vllm:cache_config_info")]
    assert 'block_size="32"' in line
    assert 'num_gpu_blocks="1234"' in line


def test_metrics_add_up_over_some_requests(start_sim: StartSim) -> None:
    sim = start_sim()
    for index in range(3):
        sim.complete(f"{index:04d}" * 100, max_tokens=20)
    sim.post("/v1/completions", {"prompt": "short answer", "max_tokens": 5000})
    metrics = sim.metrics()
    generated = metrics["vllm:generation_tokens_total"]
    assert metrics["vllm:prompt_tokens_total"] == 303
    assert metrics["vllm:request_success_total{finished_reason=length}"] == 3
    assert metrics["vllm:request_success_total{finished_reason=stop}"] == 1
    assert metrics["vllm:time_to_first_token_seconds_count"] == 4
    assert metrics["vllm:inter_token_latency_seconds_count"] == generated - 4
    assert metrics["vllm:request_generation_tokens_sum"] == generated
    assert metrics["vllm:request_params_max_tokens_sum"] == 5060
    assert metrics["vllm:iteration_tokens_total_sum"] == 303 + generated - 4
    for name in HISTOGRAMS:
        assert metrics[f"{name}_bucket{{le=+Inf}}"] == metrics[f"{name}_count"]


def test_times_follow_the_law_whatever_the_time_scale(start_sim: StartSim) -> None:
    """A request alone on the engine is timed in virtual seconds, independent of the clock."""
    sim, law = start_sim(), law_of(profile())
    sim.complete("time" * 4000, max_tokens=101)
    metrics = sim.metrics()
    prefill = law.step_s(4000, chunk_pairs(4000, 0), 0, 0)
    decode = sum(law.step_s(1, 0, 4001 + i, 1) for i in range(100))
    assert metrics["vllm:time_to_first_token_seconds_sum"] == pytest.approx(api_s(4000) + prefill, rel=1e-6)
    assert metrics["vllm:inter_token_latency_seconds_sum"] == pytest.approx(decode, rel=1e-6)
    assert metrics["vllm:request_time_per_output_token_seconds_sum"] == pytest.approx(decode / 100, rel=1e-6)
    assert metrics["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(api_s(4000) + prefill + decode, rel=1e-6)
    busy_s = (prefill + decode) / metrics["weir_sim_time_scale"]  # on the wall clock
    assert metrics["weir_sim_busy_seconds_total"] == pytest.approx(busy_s, rel=1e-6)


def test_the_gpus_of_an_engine_hold_the_memory_and_draw_the_power_of_the_law(start_sim: StartSim) -> None:
    sim, of = start_sim(time_scale=1), profile()
    before = sim.metrics()
    assert before["weir_sim_gpu_memory_use"] == pytest.approx(MEMORY_USED, abs=0.001)
    sim.complete("time" * 4000, max_tokens=11)
    after = sim.metrics()
    busy_s = after["weir_sim_busy_seconds_total"]
    computed_s = law_of(of).computing_s(4000, chunk_pairs(4000, 0))
    busy_j = LIMIT_W * (GH100.computing * computed_s + GH100.reading * (busy_s - computed_s))
    drawn_j = after["weir_sim_gpu_energy_joules_total"] - before["weir_sim_gpu_energy_joules_total"]
    assert drawn_j > busy_j - LIMIT_W * IDLE * busy_s > 0  # otherwise it draws at least as much as while idle
    sim.post("/sleep?level=1", {})
    assert sim.metrics()["weir_sim_gpu_memory_use"] == pytest.approx(kept_bytes(128_256, 32, 1) / of.peak.memory)


@pytest.mark.parametrize(
    ("flags", "memory"),
    [
        ({"kv_blocks": 1000}, 0.233),
        ({"gpu": "b200_sxm", "tp": 2}, MEMORY_USED),
        ({"gpu": "h200_sxm", "tp": 2}, MEMORY_USED),
    ],
)
def test_fewer_blocks_hold_less_memory_and_gpus_of_unknown_draws_report_no_energy(
    start_sim: StartSim, flags: dict[str, object], memory: float
) -> None:
    metrics = start_sim(**flags).metrics()
    assert metrics["weir_sim_gpu_memory_use"] == pytest.approx(memory, abs=0.001)
    assert ("weir_sim_gpu_energy_joules_total" in metrics) == (flags.get("gpu") != "b200_sxm")


def test_a_histogram_counts_a_value_equal_to_a_bound_below_it() -> None:
    histogram = Histogram((1, 2))
    for value, times in ((1, 2), (1.5, 3), (9, 1)):
        histogram.observe(value, times)
    assert histogram_lines("h", 'a="b"', histogram) == [
        'h_bucket{a="b",le="1.0"} 2',
        'h_bucket{a="b",le="2.0"} 5',
        'h_bucket{a="b",le="+Inf"} 6',
        'h_sum{a="b"} 15.5',
        'h_count{a="b"} 6',
    ]


def test_a_model_name_with_quotes_does_not_break_the_page(start_sim: StartSim) -> None:
    sim = start_sim(model='a"b\\c')
    assert "vllm:num_requests_running" in sim.metrics()
