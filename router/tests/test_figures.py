"""Extract the wanted figures from a metrics page."""

import dataclasses
import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app
from prometheus_client.exposition import choose_encoder

from router.contract.metrics.engine_metrics import MOONCAKE_SCRAPE, SGLANG_SCRAPE, VLLM_SCRAPE, parse_metrics
from router.contract.net.probe import Prober
from router.contract.redis.sample import queued

PAGE = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b} c"} 3.0
vllm:num_requests_running{engine="1",model_name="a b} c"} 4.0
vllm:num_requests_running_by_other{engine="0"} 100.0
vllm:num_requests_waiting 1
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
vllm:prefix_cache_queries_total{engine="0"} 1.5e+03
vllm:prefix_cache_hits_total{engine="0"} 500.0 1700000000000
vllm:prompt_tokens_total{engine="0"} NaN
vllm:prompt_tokens_cached_by_source_total{source="device",engine="0"} 7.0
vllm:prompt_tokens_cached_by_source_total{engine="1",source="device"} 3.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="disk"} 2.0
vllm:prompt_tokens_cached_by_source_total{engine="0",resource="x"} 2.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="1024"} 1.0
"""


def test_a_store_reports_how_full_each_tier_is() -> None:
    page = b"master_allocated_bytes 30\nmaster_total_capacity_bytes 60\nmaster_allocated_file_size_bytes 7\n"
    found = parse_metrics(page, MOONCAKE_SCRAPE)
    assert found.tiers == {"host": (30.0, 60.0), "disk": (7.0, 0.0)}
    assert found.kv_usage == 0.5
    assert parse_metrics(b"master_allocated_bytes 0\nmaster_total_capacity_bytes 0\n", MOONCAKE_SCRAPE).kv_usage is None


def test_an_engine_that_moves_kv_reports_how_much_and_how_long() -> None:
    page = (
        b'vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 4000.0\n'
        b'vllm:nixl_xfer_time_seconds_count{engine="0"} 2.0\nvllm:nixl_xfer_time_seconds_sum{engine="0"} 0.5\n'
        b'vllm:nixl_bytes_transferred_sum{engine="0"} 2e+06\nvllm:nixl_num_failed_transfers_total{engine="0"} 1.0\n'
    )
    found = parse_metrics(page, VLLM_SCRAPE)
    assert found.prompt_by_source == {"external_kv_transfer": 4000.0}
    assert found.transfers == {"n": 2.0, "seconds": 0.5, "bytes": 2e6, "failed": 1.0}
    by_mooncake = page.replace(b"vllm:nixl_", b"vllm:mooncake_") + b"vllm:mooncake_num_failed_recvs_total 3.0\n"
    assert parse_metrics(by_mooncake, VLLM_SCRAPE).transfers == {**found.transfers, "failed": 4.0}
    assert parse_metrics(PAGE, VLLM_SCRAPE).transfers == {}


def test_sglangs_pinned_memory_is_a_tier_with_transfers_in_both_directions() -> None:
    page = (
        b"# TYPE sglang:load_back_bytes_total counter\n"
        b'sglang:load_back_bytes_total{rank="0"} 2e+06\nsglang:load_back_duration_seconds_sum{rank="0"} 0.5\n'
        b'sglang:hicache_backup_bytes_total{rank="0"} 3e+06\nsglang:hicache_backup_duration_seconds_sum{rank="0"} 1.5\n'
        b'sglang:hicache_host_used_tokens{dp_rank="0"} 10.0\nsglang:hicache_host_used_tokens{dp_rank="1"} 20.0\n'
        b'sglang:hicache_host_total_tokens{dp_rank="0"} 50.0\nsglang:hicache_host_total_tokens{dp_rank="1"} 50.0\n'
    )
    host = parse_metrics(page, SGLANG_SCRAPE).kv_tiers["host"]
    assert (host.read_bytes_total, host.read_s_total) == (2e6, 0.5)
    assert (host.written_bytes_total, host.write_s_total) == (3e6, 1.5)
    assert (host.used_tokens, host.capacity_tokens) == (30.0, 100.0)


def test_an_lmcache_server_beside_an_engine_reports_the_content_and_hits_of_its_two_levels() -> None:
    page = PAGE + (
        b'lmcache_mp_l1_memory_usage_bytes 5e+09\nlmcache_mp_l2_usage_bytes{l2_name="fs"} 7e+10\n'
        b'lmcache_mp_l2_usage_bytes{l2_name="s3"} 1e+10\nlmcache_mp_lookup_requested_tokens_total{model_name="m"} 900\n'
        b'lmcache_mp_lookup_hit_l1_tokens_total{model_name="m"} 300\n'
        b'lmcache_mp_lookup_hit_l2_tokens_total{model_name="m"} 200\n'
        b'lmcache_mp_l2_prefetch_failure_chunks_total{reason="l1_oom"} 4\n'
    )
    tiers = parse_metrics(page, VLLM_SCRAPE).kv_tiers
    assert (tiers["host"].used_bytes, tiers["host"].queries_total, tiers["host"].hits_total) == (5e9, 900, 300)
    assert (tiers["remote"].used_bytes, tiers["remote"].hits_total, tiers["remote"].failed_total) == (8e10, 200, 4)


def test_requests_that_more_capacity_would_not_start_are_counted_separately() -> None:
    page = b"".join(
        b'vllm:num_requests_running{engine="%d"} 1.0\nvllm:num_requests_waiting{engine="%d"} 5.0\n'
        b'vllm:num_requests_waiting_by_reason{engine="%d",reason="capacity"} 2.0\n'
        b'vllm:num_requests_waiting_by_reason{engine="%d",reason="deferred"} 3.0\n' % (rank, rank, rank, rank)
        for rank in (0, 1)
    )
    rejections = b'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_%s"} 2.0\n'
    found = parse_metrics(page + rejections % b"reqs" + rejections % b"tokens", VLLM_SCRAPE)
    assert (found.rejected_total, parse_metrics(page, VLLM_SCRAPE).rejected_total) == (4.0, None)
    assert (found.waiting, found.deferred) == (10.0, 6.0)
    assert {rank: (each.waiting, each.deferred) for rank, each in found.ranks.items()} == {"0": (5, 3), "1": (5, 3)}


def test_transfers_to_and_from_a_store_are_counted_without_its_lookups() -> None:
    name = "vllm:mooncake_store_operation"
    lines = [
        f'{name}_{what}{{engine="0",operation="{operation}",status="ok"}} {value}'
        for operation, value in (("save_put", 10), ("load_get", 20), ("lookup_exists", 4000), ("save_exists", 4000))
        for what in ("total", "time_seconds_sum", "bytes_total", "failed_keys_total")
    ]
    found = parse_metrics(("\n" + "\n".join(lines) + "\n").encode(), VLLM_SCRAPE)
    assert found.transfers == {"n": 30.0, "seconds": 30.0, "bytes": 30.0, "failed": 30.0}


def test_blocks_offloaded_and_loaded_back_are_added_up() -> None:
    page = (
        b'\nvllm:kv_offload_load_bytes_total{engine="0"} 5e+06\nvllm:kv_offload_store_bytes_total{engine="0"} 7e+06\n'
        b'vllm:kv_offload_load_time_total{engine="0"} 0.5\nvllm:kv_offload_store_size_count{engine="0"} 3\n'
        b'vllm:kv_offload_allocation_failure_total{engine="0"} 1.0\n'
        b'vllm:kv_offload_tiering_cascade_job_failures_total{engine="0"} 2.0\n'
    )
    assert parse_metrics(page, VLLM_SCRAPE).transfers == {"n": 3.0, "seconds": 0.5, "bytes": 12e6, "failed": 3.0}


def test_figures_are_summed_over_engines_and_shares_averaged() -> None:
    found = parse_metrics(PAGE, VLLM_SCRAPE)
    assert (found.running, found.waiting) == (7.0, 1.0)
    assert found.kv_usage == pytest.approx(0.3)
    assert (found.prefix_queries_total, found.prefix_hits_total) == (1500.0, 500.0)
    assert found.cached_by_source == {"device": 10.0, "disk": 2.0}
    assert (found.block_size, found.kv_blocks) == (16, 1024)


def test_missing_and_infinite_values_are_unknown_and_not_zero() -> None:
    found = parse_metrics(PAGE, VLLM_SCRAPE)
    assert found.prompt_tokens_total is None
    assert found.generation_tokens_total is None
    empty = parse_metrics(b"", VLLM_SCRAPE)
    assert (empty.running, empty.kv_usage, empty.cached_by_source, empty.kv_blocks) == (None, None, {}, None)


def test_names_on_the_first_and_the_last_line_are_read() -> None:
    page = b"vllm:num_requests_waiting 2\nx 1\nvllm:num_requests_running 5"
    found = parse_metrics(page, VLLM_SCRAPE)
    assert (found.waiting, found.running) == (2.0, 5.0)


@pytest.mark.parametrize(
    "line", [b"vllm:num_requests_running", b"vllm:num_requests_running{", b"vllm:num_requests_running x"]
)
def test_a_broken_line_is_not_parsed_as_a_metric(line: bytes) -> None:
    assert parse_metrics(b"\n" + line + b"\n", VLLM_SCRAPE).running is None


def test_a_kind_without_a_figure_leaves_it_unknown() -> None:
    assert parse_metrics(PAGE, dataclasses.replace(VLLM_SCRAPE, running="")).running is None


def test_a_cache_configuration_that_is_not_a_number_is_unknown() -> None:
    page = b'\nvllm:cache_config_info{block_size="None",num_gpu_blocks="12"} 1.0\n'
    found = parse_metrics(page, VLLM_SCRAPE)
    assert (found.block_size, found.kv_blocks) == (None, 12)


def test_requests_that_wait_for_the_other_half_of_sglang_count_as_waiting_once() -> None:
    queues = {
        "num_queue_reqs": 1,
        "num_decode_prealloc_queue_reqs": 20,
        "num_decode_transfer_queue_reqs": 300,
        "num_prefill_bootstrap_queue_reqs": 4000,
    }
    page = "".join(
        f'sglang:{name}{{tp_rank="{shard}",moe_ep_rank="{shard}",dp_rank="{rank}",priority="{priority}"}} {value}\n'
        for rank in (0, 1)
        for shard in (2 * rank, 2 * rank + 1)  # as with --enable-metrics-for-all-schedulers
        for priority in ("", "0", "-7")
        for name, value in {**queues, "num_running_reqs": 6}.items()
    )
    found = parse_metrics(page.encode(), SGLANG_SCRAPE)
    assert (found.running, found.waiting, found.deferred) == (12, 2 * 4321, 2 * 4300)
    assert {rank: (one.running, one.waiting, one.deferred) for rank, one in found.ranks.items()} == dict.fromkeys(
        ("0", "1"), (6, 4321, 4300)
    )
    assert queued(found) == 2 * 21
    alone = parse_metrics(b"sglang:num_queue_reqs 3\nsglang:num_running_reqs 2\n", SGLANG_SCRAPE)
    assert (alone.running, alone.waiting, alone.deferred) == (2, 3, None)


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


async def test_a_page_is_requested_in_the_format_that_keeps_engines_metric_names() -> None:
    """The engines' library writes `vllm_…` for `vllm:…` if the client accepts the same formats as Prometheus 2."""
    registry, prober = CollectorRegistry(), Prober()
    Gauge("vllm:num_requests_running", "as of an engine", registry=registry).set(3)
    with make_server("127.0.0.1", 0, make_wsgi_app(registry), handler_class=Quiet) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        _, page = await prober.get(f"http://127.0.0.1:{server.server_port}/metrics", 5.0)
        prober.keep_only(set())
    written, _ = choose_encoder("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
    assert [parse_metrics(each, VLLM_SCRAPE).running for each in (page, written(registry))] == [3, None]
