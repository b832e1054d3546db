"""Compute samples from an engine's metrics."""

import json

from msgspec.structs import replace

from fleet.kinds.resources import NodeGpu
from fleet.observe.samples import InstanceReadings
from router.contract.redis.codec import encode
from router.contract.redis.sample import EngineMetrics, GpuSample, TierSample, sample_of

BLANK = EngineMetrics()


def history(*points: tuple[float, float, float]) -> InstanceReadings:
    made = InstanceReadings()
    for at, queries, hits in points:
        made.add(at, replace(BLANK, prefix_queries_total=queries, prefix_hits_total=hits))
    return made


def moved(*points: tuple[float, float]) -> InstanceReadings:
    made = InstanceReadings()
    for at, size in points:
        made.add(at, replace(BLANK, transfers={"bytes": size}))
    return made


def test_the_hit_rate_covers_the_last_minute() -> None:
    assert history((0, 0, 0), (60, 100, 50)).hit_rate() == 0.5
    assert history((0, 0, 0), (30, 1000, 0), (60, 1000, 0), (90, 1100, 100)).hit_rate() == 1.0


def test_without_lookups_there_is_no_hit_rate() -> None:
    assert history().hit_rate() is None
    assert history((0, 5, 5)).hit_rate() is None
    assert history((0, 5, 5), (1, 5, 5)).hit_rate() is None


def test_counters_that_restart_begin_a_new_history() -> None:
    assert history((0, 1000, 900), (1, 10, 5)).hit_rate() is None
    assert history((0, 1000, 900), (1, 10, 5), (2, 20, 5)).hit_rate() == 0.0


def test_an_engine_without_these_counters_has_no_rate() -> None:
    made = history((0, 0, 0))
    made.add(1, BLANK)
    assert made.hit_rate() is None


def test_the_rate_of_transfers_covers_the_last_minute() -> None:
    assert moved((0, 0), (30, 600), (60, 1200)).transfer_bytes_per_s() == 20
    assert moved((0, 0), (10, 9000), (20, 9000), (90, 9000)).transfer_bytes_per_s() == 0
    assert moved((0, 9000), (1, 0), (2, 50)).transfer_bytes_per_s() == 50


def test_a_simulated_engines_gpu_use_comes_from_its_law_and_a_real_ones_from_its_node() -> None:
    made = InstanceReadings()
    for at, busy_s in ((0.0, 0.0), (10.0, 4.0)):
        made.add(at, replace(BLANK, busy_s_total=busy_s))
    power = InstanceReadings()
    for at, joules in ((0.0, 900.0), (10.0, 4_000.0)):
        power.add(at, replace(BLANK, gpu_energy_j_total=joules))
    assert power.gpu((), 0.9) == GpuSample(memory=0.9, power_w=310.0, simulated=True)
    assert made.gpu((), None) == GpuSample(use=0.4, simulated=True)
    two = [NodeGpu(n, "H200", 100, 80, use, power_w=watts) for n, use, watts in ((0, 0.5, 300.0), (1, 0.7, 400.0))]
    assert made.gpu(two, 0.9) == GpuSample(use=0.6, memory=0.8, power_w=700.0)
    silent = [NodeGpu(0, "MIG", 100)]
    assert InstanceReadings().gpu(silent, None) == GpuSample()
    assert InstanceReadings().gpu((), None) is None
    assert InstanceReadings().gpu((), 0.9) == GpuSample(memory=0.9, simulated=True)


def test_an_engine_that_moves_no_kv_has_no_transfer_rate() -> None:
    assert history((0, 1, 1), (1, 2, 2)).transfer_bytes_per_s() is None


def test_a_sample_has_the_keys_of_the_contract() -> None:
    metrics = EngineMetrics(
        kv_usage=0.3, running=1, waiting=2, prefix_queries_total=3, prefix_hits_total=4, prompt_tokens_total=5,
        generation_tokens_total=6, preemptions_total=7, cached_by_source={"device": 1}, block_size=16, kv_blocks=1024,
        tiers={"host": (3.0, 4.0)}, kv_tiers={"host": TierSample(used_bytes=3.0)},
        prompt_by_source={"host": 8}, transfers={"n": 9},
    )  # fmt: skip
    of_instance = {"id": "p-0", "pool": "p", "epoch": 2, "at": 1000.0, "hit_rate": 0.5, "disk": (10, 20)}
    made = sample_of(metrics, **of_instance, refused={"running: not a number": 2})
    assert json.loads(encode(made)) == {
        "schema": 1, "id": "p-0", "pool": "p", "epoch": 2, "at": 1000.0, "kv_usage": 0.3, "kv_blocks": 1024,
        "block_size": 16, "running": 1, "waiting": 2, "deferred": None, "prefix_queries_total": 3,
        "prefix_hits_total": 4, "hit_rate": 0.5, "prompt_tokens_total": 5,
        "generation_tokens_total": 6, "preemptions_total": 7, "cached_by_source": {"device": 1},
        "prompt_by_source": {"host": 8}, "transfers": {"n": 9},
        "transfer_bytes_per_s": None, "tiers": {"host": [3.0, 4.0]},
        "kv_tiers": {"host": {"used_bytes": 3.0}}, "disk": [10, 20], "ranks": {}, "models": {},
        "busy_s_total": None, "gpu_memory": None, "gpu_energy_j_total": None, "gpu": None,
        "rejected_total": None, "uncached": False,
        "refused": {"running: not a number": 2},
    }  # fmt: skip


def test_each_tier_has_rates_of_the_last_minute() -> None:
    made = InstanceReadings()
    for at, read, hits in ((0.0, 100.0, 10.0), (10.0, 300.0, 15.0)):
        tier = TierSample(read_bytes_total=read, queries_total=at * 10, hits_total=hits, used_bytes=7.0)
        made.add(at, replace(BLANK, kv_tiers={"disk": tier}))
    (rated,) = made.with_rates({"disk": tier}).values()
    assert (rated.read_bytes_per_s, rated.written_bytes_per_s, rated.hit_rate) == (20.0, None, 0.05)
    assert rated.used_bytes == 7.0
    assert InstanceReadings().with_rates({"disk": tier}) == {"disk": tier}
