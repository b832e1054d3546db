"""A /metrics page like vLLM 0.32's, with its names, labels and buckets (vllm/v1/metrics) and its client library.

It includes the metrics of FastAPI's instrumentation. `page()` is about 75 kB for one engine.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fleet.simengine.metrics import FIRST_TOKEN_S, INTER_TOKEN_S, LATENCY_S, STEP_TOKENS, TRANSFER_BYTES, TRANSFER_S

TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5) if digit * 10**power <= 131_072)
DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)
HTTP_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60),
    float("inf"),
)  # fmt: skip
HISTOGRAMS = {
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
    "iteration_tokens_total": STEP_TOKENS,
    "request_max_num_generation_tokens": TOKENS,
    "request_params_n": (1, 2, 5, 10, 20),
    "request_params_max_tokens": TOKENS,
    "time_to_first_token_seconds": FIRST_TOKEN_S,
    "inter_token_latency_seconds": INTER_TOKEN_S,
    "request_time_per_output_token_seconds": INTER_TOKEN_S,
    "e2e_request_latency_seconds": LATENCY_S,
    "request_queue_time_seconds": LATENCY_S,
    "request_inference_time_seconds": LATENCY_S,
    "request_prefill_time_seconds": LATENCY_S,
    "request_decode_time_seconds": LATENCY_S,
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
    "request_prefill_kv_computed_tokens": TOKENS,
    "nixl_xfer_time_seconds": TRANSFER_S,
    "nixl_post_time_seconds": (0.001, *TRANSFER_S),
    "nixl_bytes_transferred": TRANSFER_BYTES,
    "nixl_num_descriptors": DESCRIPTORS,
}
COUNTERS = (
    *("prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries", "external_prefix_cache_hits"),
    *("mm_cache_queries", "mm_cache_hits", "num_preemptions", "prompt_tokens", "prompt_tokens_cached"),
    *("generation_tokens", "nixl_num_failed_transfers", "nixl_num_failed_notifications", "nixl_num_kv_expired_reqs"),
    "nixl_num_notifications_after_expiry",
)  # fmt: skip
LABELLED = {
    "prompt_tokens_by_source": ("source", ("local_compute", "local_cache_hit", "external_kv_transfer")),
    "prompt_tokens_cached_by_source": ("source", ("device", "host", "disk", "p2p", "external_unspecified")),
    "request_success": ("finished_reason", ("stop", "length", "abort", "error", "repetition")),
}
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
GAUGES_LABELLED = {
    "num_requests_waiting_by_reason": ("reason", ("capacity", "deferred")),
    "engine_sleep_state": ("sleep_state", ("awake", "weights_offloaded", "discard_all")),
}
CONFIG = {
    "block_size": "16", "cache_dtype": "auto", "calculate_kv_scales": "False", "cpu_kvcache_space_bytes": "None",
    "cpu_offload_gb": "0", "enable_prefix_caching": "True", "engine": "0", "gpu_memory_utilization": "0.9",
    "is_attention_free": "False", "kv_cache_memory_bytes": "None", "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None", "mamba_cache_dtype": "auto", "num_cpu_blocks": "None", "num_gpu_blocks": "21432",
    "num_gpu_blocks_override": "None", "prefix_caching_hash_algo": "sha256", "sliding_window": "None",
}  # fmt: skip
HANDLERS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/ping")
HELP = "Description of the metric, in one sentence of about the length of a help line on the page of a real engine."


def page(model: str = "meta-llama/Llama-3.3-70B-Instruct", engines: int = 1) -> bytes:
    """Render the page. `engines`: data-parallel ranks, each with its own labels."""
    registry = CollectorRegistry()
    values = [(model, str(number)) for number in range(engines)]
    for name in GAUGES:
        gauge = Gauge(f"vllm:{name}", HELP, ["model_name", "engine"], registry=registry)
        for each in values:
            gauge.labels(*each).set(0.25)
    _labelled(registry, values)
    for name in COUNTERS:
        counter = Counter(f"vllm:{name}", HELP, ["model_name", "engine"], registry=registry)
        for each in values:
            counter.labels(*each).inc(123_456)
    for name, buckets in HISTOGRAMS.items():
        histogram = Histogram(f"vllm:{name}", HELP, ["model_name", "engine"], buckets=buckets, registry=registry)
        for each in values:
            histogram.labels(*each).observe(0.7)
    Gauge("vllm:cache_config_info", HELP, list(CONFIG), registry=registry).labels(*CONFIG.values()).set(1)
    _http(registry)
    return generate_latest(registry)


def _labelled(registry: CollectorRegistry, values: list[tuple[str, str]]) -> None:
    for found, make in ((LABELLED, Counter), (GAUGES_LABELLED, Gauge)):
        for name, (label, words) in found.items():
            metric = make(f"vllm:{name}", HELP, ["model_name", "engine", label], registry=registry)
            for model, engine in values:
                for word in words:
                    metric.labels(model, engine, word).inc(1000)


def _http(registry: CollectorRegistry) -> None:
    labels = ["handler", "method", "status"]
    requests = Counter("http_requests", HELP, labels, registry=registry)
    fine = Histogram("http_request_duration_highr_seconds", HELP, buckets=HTTP_S, registry=registry)
    coarse = Histogram("http_request_duration_seconds", HELP, labels[:2], buckets=(0.1, 0.5, 1), registry=registry)
    for handler in HANDLERS:
        requests.labels(handler, "POST", "2xx").inc()
        coarse.labels(handler, "POST").observe(0.2)
        fine.observe(0.2)
