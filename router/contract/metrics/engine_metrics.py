"""An engine's load, KV transfers and tiers, by the names on its metrics page. Pure."""

from collections import Counter
from dataclasses import dataclass, replace

from router.contract.metrics.metrics_page import MetricsPage, Refused, by_rank, total
from router.contract.metrics.tier_metrics import (
    LMCACHE_SERVER_TIERS,
    LMCACHE_TIERS,
    MOONCAKE_CLIENT_TIERS,
    MOONCAKE_MASTER_TIERS,
    SGLANG_TIERS,
    SIM_TIERS,
    VLLM_TIERS,
    TierNames,
    parse_tiers,
)
from router.contract.redis.published import MOST_RANKS
from router.contract.redis.sample import EngineMetrics, RankSample


@dataclass(frozen=True, slots=True)
class KvTransferTotals:
    """Counters of one path of an engine's KV transfers; counters of the same field are added up."""

    prefix: str  # common prefix of these names; pages without it are not searched
    n: tuple[str, ...]
    seconds: tuple[str, ...]
    bytes: tuple[str, ...]
    failed: tuple[str, ...]
    operations: tuple[str, ...] = ()  # values of the label `operation` that move KV; empty without the label


@dataclass(frozen=True, slots=True)
class Scrape:
    """Names on the engine's /metrics page; empty if the engine does not report the figure."""

    kv_usage: str
    running: str
    waiting: str
    prefix_queries: str
    prefix_hits: str
    prompt_tokens: str
    generation_tokens: str
    preemptions: str
    cached_by_source: str  # a counter with a `source` label
    cache_config: str  # a gauge whose labels hold block_size, num_gpu_blocks and `reuses`
    prompt_by_source: str = ""  # a counter with a `source` label: where prompt tokens came from
    transfers: tuple[KvTransferTotals, ...] = ()
    tiers: tuple[TierNames, ...] = ()  # tiers of KV below the GPU
    is_store: bool = False  # True for a KV store, whose usage is that of its first tier
    block_size: str = ""  # gauges to use where `cache_config` has no such labels
    kv_blocks: str = ""
    reuses: str = ""  # label of `cache_config`: whether prefixes of earlier prompts are reused
    busy: str = ""  # seconds for which the GPU computed, if the engine reports them
    gpu_memory: str = ""  # share of its GPUs' memory that the engine holds
    gpu_energy: str = ""  # joules
    waiting_by_reason: str = ""  # a gauge by reason; requests with the reason DEFERRED do not wait for capacity
    rejected: str = ""  # requests refused because the engine's queue was full
    queues: tuple[str, ...] = ()  # further gauges of waiting requests
    deferred: tuple[str, ...] = ()  # gauges in `queues` whose requests do not wait for capacity
    connector_hits: str = ""  # prompt tokens that a connector found cached
    # Metrics whose presence shows that connector hits may come from the request's own prefill
    pulls: tuple[str, ...] = ()


DEFERRED = b'reason="deferred"'
NO_SCRAPE = Scrape("", "", "", "", "", "", "", "", "", "")
MOONCAKE_SCRAPE = replace(NO_SCRAPE, tiers=MOONCAKE_MASTER_TIERS, is_store=True)
MOONCAKE_CLIENT_SCRAPE = replace(NO_SCRAPE, tiers=MOONCAKE_CLIENT_TIERS)
VLLM_SCRAPE = Scrape(
    kv_usage="vllm:kv_cache_usage_perc",
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    prefix_queries="vllm:prefix_cache_queries_total",
    prefix_hits="vllm:prefix_cache_hits_total",
    prompt_tokens="vllm:prompt_tokens_total",
    generation_tokens="vllm:generation_tokens_total",
    preemptions="vllm:num_preemptions_total",
    cached_by_source="vllm:prompt_tokens_cached_by_source_total",
    cache_config="vllm:cache_config_info",
    reuses="enable_prefix_caching",
    prompt_by_source="vllm:prompt_tokens_by_source_total",
    waiting_by_reason="vllm:num_requests_waiting_by_reason",
    rejected="vllm:admission_rejections_total",
    busy="weir_sim_busy_seconds_total",
    gpu_memory="weir_sim_gpu_memory_use",
    gpu_energy="weir_sim_gpu_energy_joules_total",
    connector_hits="vllm:external_prefix_cache_hits_total",
    pulls=("vllm:nixl_xfer_time_seconds_count", "vllm:mooncake_xfer_time_seconds_count"),
    transfers=(
        KvTransferTotals(
            "vllm:nixl_",
            n=("xfer_time_seconds_count",),
            seconds=("xfer_time_seconds_sum",),
            bytes=("bytes_transferred_sum",),
            failed=("num_failed_transfers_total",),
        ),
        KvTransferTotals(
            "vllm:mooncake_",
            n=("xfer_time_seconds_count",),
            seconds=("xfer_time_seconds_sum",),
            bytes=("bytes_transferred_sum",),
            failed=("num_failed_transfers_total", "num_failed_recvs_total"),
        ),
        KvTransferTotals(
            "vllm:mooncake_store_operation_",
            n=("total",),
            seconds=("time_seconds_sum",),
            bytes=("bytes_total",),
            failed=("failed_keys_total",),
            operations=("save_put", "load_get"),
        ),
        KvTransferTotals(
            "vllm:kv_offload_",
            n=("load_size_count", "store_size_count"),
            seconds=("load_time_total", "store_time_total"),
            bytes=("load_bytes_total", "store_bytes_total"),
            failed=(
                "allocation_failure_total",
                "tiering_promotion_job_failures_total",
                "tiering_cascade_job_failures_total",
            ),
        ),
    ),
    tiers=(*VLLM_TIERS, *LMCACHE_TIERS, *LMCACHE_SERVER_TIERS, *SIM_TIERS),
)


# Requests on SGLang's prefill and decode servers that wait for the other half: for its KV memory, or for the KV itself
_UNTIL_KV = ("sglang:num_prefill_bootstrap_queue_reqs", "sglang:num_decode_transfer_queue_reqs")
# SGLang 0.5.23, sglang/srt/observability/metrics_collector.py; cached tokens are counted for all prompt tokens
SGLANG_SCRAPE = replace(
    NO_SCRAPE,
    kv_usage="sglang:token_usage",
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    prefix_queries="sglang:prompt_tokens_total",
    prefix_hits="sglang:cached_tokens_total",
    prompt_tokens="sglang:prompt_tokens_total",
    generation_tokens="sglang:generation_tokens_total",
    preemptions="sglang:num_retracted_requests_total",
    block_size="sglang:page_size",
    kv_blocks="sglang:num_pages",
    cached_by_source="sglang:cached_tokens_total",
    queues=("sglang:num_decode_prealloc_queue_reqs", *_UNTIL_KV),
    deferred=_UNTIL_KV,
    tiers=(*SGLANG_TIERS, *LMCACHE_SERVER_TIERS),
)
# TensorRT-LLM 1.3, tensorrt_llm/metrics/collector.py (commit 050f80d); its page is /prometheus/metrics
TRTLLM_SCRAPE = replace(
    NO_SCRAPE,
    kv_usage="trtllm_kv_cache_utilization",
    running="trtllm_num_requests_running",
    waiting="trtllm_num_requests_waiting",
    prefix_queries="trtllm_prompt_tokens_total",
    prefix_hits="trtllm_prompt_cached_tokens_total",
    prompt_tokens="trtllm_prompt_tokens_total",
    generation_tokens="trtllm_generation_tokens_total",
    cache_config="trtllm_kv_cache_config_info",
    reuses="enable_block_reuse",
    block_size="trtllm_kv_cache_tokens_per_block",
    kv_blocks="trtllm_kv_cache_max_blocks",
)


def parse_metrics(page: bytes, names: Scrape, refused: Refused | None = None) -> EngineMetrics:
    """Parse a metrics page; `refused` counts values that are left out."""
    read = MetricsPage(page, Counter() if refused is None else refused)
    config = read.labels(names.cache_config)
    tiers = parse_tiers(read, names.tiers)
    sizes = {
        name: (tier.used_bytes, tier.capacity_bytes or 0.0)
        for name, tier in tiers.items()
        if tier.used_bytes is not None
    }
    return EngineMetrics(
        kv_usage=_share(sizes) if names.is_store and sizes else read.share(names.kv_usage),
        running=total(read.requests((names.running,))),
        waiting=total(_waiting(read, names)),
        deferred=total(_deferred(read, names)),
        prefix_queries_total=read.sum(names.prefix_queries),
        prefix_hits_total=read.sum(names.prefix_hits),
        prompt_tokens_total=read.sum(names.prompt_tokens),
        generation_tokens_total=read.sum(names.generation_tokens),
        preemptions_total=read.sum(names.preemptions),
        rejected_total=read.sum(names.rejected),
        cached_by_source=read.by_source(names.cached_by_source),
        block_size=read.count(config, b"block_size") or read.gauge(names.block_size),
        kv_blocks=read.count(config, b"num_gpu_blocks") or read.gauge(names.kv_blocks),
        tiers=sizes,
        kv_tiers=tiers,
        prompt_by_source=read.by_source(names.prompt_by_source),
        transfers=_transfers(read, names),
        busy_s_total=read.mean(names.busy),
        gpu_memory=read.share(names.gpu_memory),
        gpu_energy_j_total=read.sum(names.gpu_energy),
        ranks=_ranks(MetricsPage(page, Counter()), names),  # a new Counter: refused lines have been counted above
        uncached=config.get(names.reuses.encode()) == b"False" and not (tiers or _connector_reuses(read, names)),
    )


def _connector_reuses(page: MetricsPage, names: Scrape) -> bool:
    """Return whether a connector has reused KV of earlier prompts; vLLM allows that even without prefix caching."""
    return bool(page.sum(names.connector_hits)) and all(page.sum(name) is None for name in names.pulls)


def _waiting(page: MetricsPage, names: Scrape) -> list[tuple[bytes, float]]:
    return page.requests((names.waiting, *names.queues))


def _deferred(page: MetricsPage, names: Scrape) -> list[tuple[bytes, float]]:
    return [*page.requests((names.waiting_by_reason,), DEFERRED), *page.requests(names.deferred)]


def _ranks(page: MetricsPage, names: Scrape) -> dict[str, RankSample]:
    """Return the samples by data-parallel rank; empty for a single rank."""
    running = by_rank(page.requests((names.running,)))
    if len(running) < 2:
        return {}
    usage, waiting = page.by_rank(names.kv_usage), by_rank(_waiting(page, names))
    queries, hits = page.by_rank(names.prefix_queries), page.by_rank(names.prefix_hits)
    prompts, tokens = page.by_rank(names.prompt_tokens), page.by_rank(names.generation_tokens)
    deferred = by_rank(_deferred(page, names))
    return {
        rank: RankSample(
            kv_usage=share if (share := usage.get(rank)) is not None and share <= 1 else None,
            running=running[rank],
            waiting=waiting.get(rank),
            deferred=deferred.get(rank),
            prefix_queries_total=queries.get(rank),
            prefix_hits_total=hits.get(rank),
            prompt_tokens_total=prompts.get(rank),
            generation_tokens_total=tokens.get(rank),
        )
        for rank in sorted(running, key=int)[:MOST_RANKS]
    }


def _transfers(page: MetricsPage, names: Scrape) -> dict[str, float]:
    """Sum n, seconds, bytes and failed over all transfer paths; empty if the engine transfers no KV."""
    found: dict[str, float] = {}
    for way in names.transfers:
        if b"\n" + way.prefix.encode() in page.raw:
            for figure in ("n", "seconds", "bytes", "failed"):
                _add(found, figure, _moved(page, way, getattr(way, figure)))
    return found


def _add(found: dict[str, float], figure: str, values: list[float]) -> None:
    if values:
        found[figure] = found.get(figure, 0.0) + sum(values)


def _moved(page: MetricsPage, way: KvTransferTotals, names: tuple[str, ...]) -> list[float]:
    return [
        value
        for name in names
        for labels, value in page.series(way.prefix + name)
        if not way.operations or any(f'operation="{each}"'.encode() in labels for each in way.operations)
    ]


def _share(tiers: dict[str, tuple[float, float]]) -> float | None:
    """Return the usage of the first tier, which is the store's memory."""
    used, capacity = next(iter(tiers.values()))
    return min(1.0, used / capacity) if capacity else None
