"""KV tiers below the GPU, from the names on a metrics page: vLLM's offloading, LMCache, Mooncake's store. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from router.contract.metrics.metrics_page import MetricsPage
from router.contract.redis.sample import TierSample
from router.contract.values.reading import read_value

MOST_TIERS = 8
_TIER = re.compile(rb'[{,]tier="(?:\d+:)?([\w./-]{1,32})"')
# Names used by vLLM and simulated engines; other tiers keep the engine's names.
_KNOWN = {"primary": "host", "cpu": "host", "dram": "host", "p2p": "remote", "obj": "remote"}
_DISKS = ("fs", "disk", "ssd")


@dataclass(frozen=True, slots=True)
class TierNames:
    """Metric names for each field of the sample; the values of several names are added up."""

    tier: str  # empty if the label `tier` holds the name
    prefix: str  # common prefix of the names; pages without it are not searched
    names: Mapping[str, tuple[str, ...]]
    second: float = 1.0  # the unit of its times, in s


# vLLM 0.32: vllm/v1/kv_offload/tiering/base.py; earlier versions say blocks for chunks. The tiers' own numbers come
# before the totals.
VLLM_TIERS = (
    TierNames(
        "",
        "vllm:kv_offload_tiering_",
        {
            "read_bytes_total": ("read_bytes_total",),
            "read_s_total": ("read_time_total",),
            "written_bytes_total": ("write_bytes_total",),
            "write_s_total": ("write_time_total",),
            "queries_total": ("chunk_queries_total", "block_queries_total"),
            "hits_total": ("chunk_hits_total", "block_hits_total"),
            "failed_total": ("promotion_job_failures_total", "cascade_job_failures_total"),
            "backlog": ("active_cascade_jobs",),
        },
    ),
    TierNames(
        "host",
        "vllm:kv_offload_",
        {
            "read_bytes_total": ("load_bytes_total",),
            "read_s_total": ("load_time_total",),
            "written_bytes_total": ("store_bytes_total",),
            "write_s_total": ("store_time_total",),
            "failed_total": ("allocation_failure_total",),
        },
    ),
)
# Reported by simulated engines only
SIM_TIERS = (
    TierNames(
        "",
        "weir_sim_kv_tier_",
        {name: (name,) for name in ("used_bytes", "capacity_bytes", "backlog_bytes")},
    ),
)
# SGLang 0.5.23, sglang/srt/observability/metrics_collector.py: pinned memory, and transfers between it and the GPU
SGLANG_TIERS = (
    TierNames(
        "host",
        "sglang:",
        {
            "read_bytes_total": ("load_back_bytes_total",),
            "read_s_total": ("load_back_duration_seconds_sum",),
            "written_bytes_total": ("hicache_backup_bytes_total",),
            "write_s_total": ("hicache_backup_duration_seconds_sum",),
            "used_tokens": ("hicache_host_used_tokens",),
            "capacity_tokens": ("hicache_host_total_tokens",),
        },
    ),
)
# LMCache 0.5, on vLLM's page: lmcache/observability.py. Hits and times cover all its tiers together.
LMCACHE_TIERS = (
    TierNames("host", "lmcache:", {"used_bytes": ("local_cache_usage",)}),
    TierNames("disk", "lmcache:", {"used_bytes": ("local_storage_usage",)}),
    TierNames(
        "remote",
        "lmcache:",
        {
            "used_bytes": ("remote_cache_usage",),
            "read_bytes_total": ("num_remote_read_bytes_total",),
            "written_bytes_total": ("num_remote_write_bytes_total",),
        },
    ),
    TierNames(
        "LMCache",
        "lmcache:",
        {
            "queries_total": ("num_requested_tokens_total",),
            "hits_total": ("num_hit_tokens_total",),
            "read_s_total": ("time_to_retrieve_sum",),
            "write_s_total": ("time_to_store_sum",),
            "failed_total": ("local_cpu_evict_failed_count_total",),
        },
    ),
)
# LMCache 0.5.6 as a separate process, on its own page: lmcache/v1/mp_observability. Its L2 may be a disk or remote.
LMCACHE_SERVER_TIERS = (
    TierNames(
        "host",
        "lmcache_mp_",
        {
            "used_bytes": ("l1_memory_usage_bytes",),
            "queries_total": ("lookup_requested_tokens_total",),
            "hits_total": ("lookup_hit_l1_tokens_total",),
            "failed_total": ("l1_allocation_failure_chunks_total",),
        },
    ),
    TierNames(
        "remote",
        "lmcache_mp_",
        {
            "used_bytes": ("l2_usage_bytes",),
            "queries_total": ("lookup_requested_tokens_total",),
            "hits_total": ("lookup_hit_l2_tokens_total",),
            "failed_total": ("l2_prefetch_failure_chunks_total",),
        },
    ),
)
# Mooncake 0.3.13: mooncake-store/src/master_metric_manager.cpp and include/client_metric.h. Gets do not count as
# queries, because engines check for existence before they read (findings/mooncake-hits.sh).
MOONCAKE_MASTER_TIERS = (
    TierNames(
        "host",
        "",
        {
            "used_bytes": ("master_allocated_bytes",),
            "capacity_bytes": ("master_total_capacity_bytes",),
            "read_bytes_total": ("mem_cache_hit_bytes_total",),
            "hits_total": ("mem_cache_hit_nums_",),
        },
    ),
    TierNames(
        "disk",
        "",
        {
            "used_bytes": ("master_allocated_file_size_bytes",),
            "capacity_bytes": ("master_total_file_capacity_bytes",),
            "read_bytes_total": ("file_cache_hit_bytes_total",),
            "hits_total": ("file_cache_hit_nums_",),
        },
    ),
)
MOONCAKE_CLIENT_TIERS = (
    TierNames(
        "disk",
        "mooncake_ssd_",
        {
            "read_bytes_total": ("read_bytes_total",),
            "read_s_total": ("read_latency_us_sum",),
            "written_bytes_total": ("write_bytes_total",),
            "write_s_total": ("write_latency_us_sum",),
        },
        second=1e-6,
    ),
)


def parse_tiers(page: MetricsPage, ways: tuple[TierNames, ...]) -> dict[str, TierSample]:
    """Parse the tiers; skip a tier whose figures are all zero, which is unused."""
    found: dict[str, dict[str, float]] = {}
    for way in ways:
        if way.prefix.encode() in page.raw:
            for tier, fields in _read(page, way).items():
                known = found.setdefault(tier, {})
                known.update((name, value) for name, value in fields.items() if name not in known)
    return {tier: read_value(fields, TierSample) for tier, fields in found.items() if any(fields.values())}


def _read(page: MetricsPage, way: TierNames) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for field, names in way.names.items():
        unit = way.second if field.endswith("_s_total") else 1.0
        for name in names:
            for labels, value in page.series(way.prefix + name):
                tier = way.tier or _named(labels)
                if tier in found or len(found) < MOST_TIERS:
                    fields = found.setdefault(tier, {})
                    fields[field] = fields.get(field, 0.0) + value * unit
                else:
                    page.refuse(f"{way.prefix}{name}: more than {MOST_TIERS} tiers")
    return found


def _named(labels: bytes) -> str:
    found = _TIER.search(labels)
    name = found[1].decode() if found is not None else "host"
    return "disk" if name.startswith(_DISKS) else _KNOWN.get(name, name)
