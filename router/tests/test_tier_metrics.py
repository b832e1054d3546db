"""KV tiers on the metrics pages of real engines.

The pages of Mooncake 0.3.13 were read from its processes (150 objects of 1 MiB put into 64 MiB of memory and a disk,
then read). The page of LMCache 0.5.6 was written by its own `PrometheusLogger`; that of vLLM 0.32 has the names of its
sources. Buckets and help are left out.
"""

from collections import Counter
from pathlib import Path

import pytest

from router.contract.metrics.engine_metrics import (
    MOONCAKE_CLIENT_SCRAPE,
    MOONCAKE_SCRAPE,
    VLLM_SCRAPE,
    Scrape,
    parse_metrics,
)
from router.contract.metrics.tier_metrics import MOST_TIERS
from router.contract.redis.sample import EngineMetrics, TierSample

PAGES = Path(__file__).with_name("pages")
MIB = 2.0**20


def read(page: str, names: Scrape) -> EngineMetrics:
    return parse_metrics((PAGES / page).read_bytes(), names)


def test_mooncakes_master_reports_space_and_hits_of_memory_and_disk() -> None:
    found = read("mooncake_master.txt", MOONCAKE_SCRAPE)
    host, disk = found.kv_tiers["host"], found.kv_tiers["disk"]
    assert (host.used_bytes, host.capacity_bytes) == (57 * MIB, 64 * MIB)
    assert (host.hits_total, host.read_bytes_total) == (170, 170 * MIB)
    assert (disk.used_bytes, disk.capacity_bytes) == (113 * MIB, 1024 * MIB)
    assert (disk.hits_total, disk.read_bytes_total) == (67, 67 * MIB)
    assert found.kv_usage == 57 / 64
    assert found.tiers == {"host": (57 * MIB, 64 * MIB), "disk": (113 * MIB, 1024 * MIB)}


def test_reads_from_mooncakes_store_do_not_count_as_queries_since_engines_read_only_existing_keys() -> None:
    """Mooncake 0.3.13.post1, findings/mooncake-hits.sh: reading ten keys, three of which exist, counts three gets."""
    counts = b"master_batch_exist_key_items_total 10\ntotal_get_nums_ 3\nmem_cache_hit_nums_ 3\n"
    found = parse_metrics(counts + b"mem_cache_hit_bytes_total 3000\n", MOONCAKE_SCRAPE)
    assert found.kv_tiers == {"host": TierSample(hits_total=3, read_bytes_total=3000)}


def test_a_mooncake_client_reports_its_disk_reads_and_writes() -> None:
    found = read("mooncake_client.txt", MOONCAKE_CLIENT_SCRAPE)
    disk = TierSample(
        read_bytes_total=67 * MIB, read_s_total=0.009854, written_bytes_total=113 * MIB, write_s_total=0.456557
    )
    assert found.kv_tiers == {"disk": disk}
    assert disk.write_speed == pytest.approx(113 * MIB / 0.456557)
    assert (found.kv_usage, found.tiers) == (None, {})


def test_vllm_reports_each_tier_of_its_offloading() -> None:
    found = read("vllm_offloading.txt", VLLM_SCRAPE)
    assert found.kv_tiers == {
        "host": TierSample(
            read_bytes_total=2.4e11,
            read_s_total=6.0,
            written_bytes_total=3.2e11,
            write_s_total=10.0,
            queries_total=1000.0,
            hits_total=250.0,
            failed_total=25.0,
        ),
        "disk": TierSample(
            read_bytes_total=2.5e11,
            read_s_total=100.0,
            written_bytes_total=3e11,
            write_s_total=200.0,
            queries_total=750.0,
            hits_total=600.0,
            failed_total=2.0,
            backlog=3.0,
        ),
    }


def test_lmcache_reports_the_space_of_each_tier_and_the_hits_of_all() -> None:
    found = read("vllm_lmcache.txt", VLLM_SCRAPE)
    assert found.kv_tiers == {
        "host": TierSample(used_bytes=2e9),
        "disk": TierSample(used_bytes=5e9),
        "LMCache": TierSample(
            queries_total=40000.0, hits_total=10000.0, read_s_total=0.5, write_s_total=0.25, failed_total=1.0
        ),
    }
    assert (found.kv_usage, found.tiers) == (0.5, {"host": (2e9, 0.0), "disk": (5e9, 0.0)})


@pytest.mark.parametrize(
    ("further", "uncached"),
    [
        ("", True),
        ("vllm:external_prefix_cache_hits_total 0\n", True),
        ("vllm:external_prefix_cache_hits_total 900\n", False),
        ("vllm:external_prefix_cache_hits_total 900\nvllm:nixl_xfer_time_seconds_count 1\n", True),
        ("vllm:external_prefix_cache_hits_total 900\nvllm:mooncake_xfer_time_seconds_count 0\n", True),
        ((PAGES / "vllm_offloading.txt").read_text() + "vllm:nixl_xfer_time_seconds_count 1\n", False),
        ((PAGES / "vllm_lmcache.txt").read_text(), False),
    ],
)
def test_an_engine_without_prefix_caching_reuses_what_a_connector_keeps_but_not_what_a_prefill_sent(
    further: str, uncached: bool
) -> None:
    config = '\nvllm:cache_config_info{enable_prefix_caching="False"} 1\n'
    assert parse_metrics((config + further).encode(), VLLM_SCRAPE).uncached is uncached


def test_too_many_tiers_are_cut_off() -> None:
    refused: Counter[str] = Counter()
    lines = "".join(f'\nvllm:kv_offload_tiering_read_bytes_total{{tier="{n}:t{n}"}} 1' for n in range(20))
    found = parse_metrics(f"{lines}\n".encode(), VLLM_SCRAPE, refused)
    assert len(found.kv_tiers) == MOST_TIERS
    assert refused == {f"vllm:kv_offload_tiering_read_bytes_total: more than {MOST_TIERS} tiers": 20 - MOST_TIERS}
