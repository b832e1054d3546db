"""KV tiers below a simulated engine's GPU: hits, counters, events, and loads that do not fit."""

import pytest
import zmq

from bench import tier_events
from fleet.engine.law import law_of
from fleet.engine.profiles import kv_blocks, profile
from fleet.engine.tiers.loading import load_s
from fleet.simengine.arguments import parse_arguments
from fleet.simengine.model import model_of
from fleet.systems.tiers.serving import TieredEngine
from fleet.tests.simengine.conftest import StartSim
from fleet.tests.simengine.test_kv_events import replay
from router.contract.metrics.engine_metrics import VLLM_SCRAPE, parse_metrics

BLOCKS = 100
PROMPT = "a document " * 400  # 1,100 tokens, 68 blocks
OTHER = "others say " * 575


def cached(answer: dict[str, object]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])  # type: ignore[index]


def test_blocks_that_left_the_gpu_are_loaded_counted_and_announced_with_their_medium(start_sim: StartSim) -> None:
    tiered = start_sim(kv_blocks=BLOCKS, dram_gb=1, ssd_gb=10, ssd_access="ssd", tier_load="always")
    tiered.complete(PROMPT)
    tiered.complete(OTHER)
    assert cached(tiered.complete(PROMPT)) == 1088
    metrics = tiered.metrics()
    assert metrics["vllm:prompt_tokens_cached_by_source_total{source=host}"] == 1088
    assert metrics["vllm:prompt_tokens_by_source_total{source=external_kv_transfer}"] == 1088
    assert metrics["vllm:external_prefix_cache_hits_total"] == 1088
    assert metrics["vllm:prefix_cache_hits_total"] == 0
    assert metrics["vllm:kv_offload_load_bytes_total"] == 1088 * 131_072
    assert metrics["vllm:kv_offload_load_size_count"] == 1
    assert metrics["vllm:kv_offload_load_time_total"] == pytest.approx(1088 * 131_072 / 50e9)
    assert metrics["vllm:kv_offload_tiering_block_hits_total{tier=dram}"] == 68
    assert metrics["vllm:kv_offload_tiering_read_bytes_total{tier=ssd}"] == 0
    assert metrics["vllm:kv_offload_tiering_write_bytes_total{tier=ssd}"] > 68 * 16 * 131_072
    assert metrics["weir_sim_kv_backlog_bytes"] == 0
    tiers = parse_metrics(tiered.http.get("/metrics").content, VLLM_SCRAPE).kv_tiers
    assert (tiers["host"].hits_total, tiers["host"].read_bytes_total) == (68, 1088 * 131_072)
    assert (tiers["disk"].read_bytes_total, tiers["disk"].hits_total) == (0, 0)
    assert (tiers["disk"].capacity_bytes, tiers["disk"].backlog_bytes) == (10e9, 0)
    assert tiers["disk"].used_bytes == tiers["disk"].written_bytes_total
    with zmq.Context() as context:
        batches = replay(context, tiered, 0)
    events = [event for _, batch in batches for event in batch[1] if event["type"] == "BlockStored"]
    media = {event["medium"]: event for event in events}
    assert set(media) == {"GPU", "CPU", "DISK"}
    assert media["GPU"]["token_ids"]
    assert (media["CPU"]["token_ids"], media["CPU"]["parent_block_hash"]) == ([], None)


def test_a_load_that_does_not_fit_into_gpu_memory_is_an_error(start_sim: StartSim) -> None:
    """GPUDirect Storage stages 0.45 of a load outside the pool; the load exceeds 8 GB on this GPU."""
    sim = start_sim(
        time_scale=10_000,
        kv_blocks=9_200,
        ssd_gb=1000,
        ssd_access="ssd-gds",
        tier_load="always",
        max_model_len=160_000,
    )
    for prompt in ("first " * 97_500, "other " * 97_500):
        sim.complete(prompt, max_tokens=1)
    answer = sim.post("/v1/completions", {"prompt": "first " * 97_500, "max_tokens": 1})
    assert (answer.status_code, "out of memory" in answer.text) == (500, True)
    assert sim.metrics()["vllm:request_success_total{finished_reason=error}"] == 1
    assert sim.metrics()["vllm:num_requests_running"] == 0


def test_an_engine_with_tiers_computes_as_tuttis_page_states_if_the_option_is_set() -> None:
    """By default the engine uses neither constant, and without tiers the option changes nothing."""
    words, law = ["--port", "0", "--model", "m", "--tier-law", "published"], law_of(profile())
    asked = model_of(parse_arguments([*words, "--ssd-gb", "100"]), "both")
    assert asked.tiers is not None
    page = TieredEngine(tier_events.LAW, tier_events.LAYOUT, tier_events.HBM_TOKENS)
    assert (asked.law, asked.tiers.floor_s, asked.tiers.layout) == (page.law, page.floor_s, page.layout)
    assert model_of(parse_arguments(words), "both").law == law
    plain = model_of(parse_arguments([*words[:4], "--ssd-gb", "100"]), "both")
    assert (plain.law, plain.tiers and plain.tiers.floor_s) == (law, 0.0)


@pytest.mark.parametrize(
    ("words", "gb_per_s", "layer_ms"),
    [
        ([], 50.0, 0.0),
        (["--tier-law", "published"], 50.0, 4.153),
        (["--dram-gb-per-s", "56"], 56.0, 0.0),
        (["--tier-law", "published", "--dram-gb-per-s", "56"], 56.0, 0.0),
        (["--dram-gb-per-s", "56", "--dram-layer-ms", "2"], 56.0, 2.0),
    ],
)
def test_host_memory_is_read_at_the_links_rate_unless_another_rate_is_given(
    words: list[str], gb_per_s: float, layer_ms: float
) -> None:
    asked = model_of(parse_arguments(["--port", "0", "--model", "m", "--dram-gb", "10", *words]), "both")
    assert asked.tiers is not None
    (device,) = (tier.device for tier in asked.tiers.tiers)
    assert (device.read_bytes_per_s / 1e9, device.layer_setup_s * 1e3) == pytest.approx((gb_per_s, layer_ms), abs=1e-3)


@pytest.mark.parametrize(
    ("access", "words", "read_gb_per_s", "write_gb_per_s"),
    [
        ("ssd-tutti", [], 29.0, 10.0),
        ("ssd-tutti", ["--ssd-drives", "4"], 58.0, 20.0),
        ("ssd-tutti", ["--ssd-drives", "1", "--ssd-read-gb-s", "7.25"], 7.25, 2.5),
        ("ssd-gds", ["--ssd-drives", "4"], 58.0, 7.0),
        ("ssd-gds", ["--ssd-drives", "1"], 14.5, 5.0),
    ],
)
def test_more_drives_read_and_write_faster_as_far_as_the_cpu_can_control_them(
    access: str, words: list[str], read_gb_per_s: float, write_gb_per_s: float
) -> None:
    given = ["--port", "0", "--model", "m", "--ssd-gb", "10", "--ssd-access", access, *words]
    asked = model_of(parse_arguments(given), "both")
    assert asked.tiers is not None
    (tier,) = asked.tiers.tiers
    rates = tier.device.read_bytes_per_s / 1e9, tier.device.write_bytes_per_s / 1e9
    assert rates == pytest.approx((read_gb_per_s, write_gb_per_s))


def test_one_command_per_page_loads_slowly_and_its_lists_take_gpu_memory() -> None:
    words = ["--port", "0", "--model", "m", "--ssd-gb", "100"]
    sgl, prp = (model_of(parse_arguments([*words, "--ssd-metadata", one]), "both") for one in ("sgl", "prp"))
    assert sgl.tiers is not None
    assert prp.tiers is not None
    slow, fast = (load_s(one.tiers.tiers[0].device, one.tiers.layout, 32_768) for one in (prp, sgl))
    assert slow == pytest.approx(32 * fast, rel=0.4)  # apart from the set-up time of layers
    assert sgl.kv_blocks - prp.kv_blocks > 100


def test_addresses_of_the_pool_take_gpu_memory() -> None:
    words = ["--port", "0", "--model", "m"]
    plain = model_of(parse_arguments(words), "both")
    tutti = model_of(parse_arguments([*words, "--ssd-gb", "100"]), "both")
    assert plain.tiers is None
    assert plain.kv_blocks == kv_blocks(profile())
    assert 0 < plain.kv_blocks - tutti.kv_blocks < 20
    assert tutti.tiers is not None
    assert tutti.tiers.staging_bytes == pytest.approx(0.1 * profile().peak.memory)
