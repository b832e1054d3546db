"""The closed forms of loading, against published figures and within their bounds."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.engine.law import law_of
from fleet.engine.profiles import profile
from fleet.engine.tiers.devices import (
    DEVICES,
    DRAM,
    DRAM_FITTED,
    LAYER_PASS_S,
    REMOTE,
    SOURCES,
    SSD,
    SSD_GDS,
    SSD_TUTTI,
    TierDevice,
)
from fleet.engine.tiers.loading import (
    bubble_s,
    crossover,
    effective_bytes_per_s,
    exposed_s,
    is_worth_loading,
    load_s,
    pipeline_s,
    prefill_s,
    shortest_worth_loading,
    store_s,
)
from fleet.engine.tiers.sizes import KvLayout, drive_writes_per_day, layout_of, metadata_bytes, staging_tokens

LLAMA = layout_of(profile())
PLAIN = law_of(profile())
LAW = replace(PLAIN, attention_s_per_pair=PLAIN.attention_s_per_pair * 1.6)  # fitted to figure 11
K = 1024
PROMPT = 128 * K
BEFORE_S = 0.015 + 1.1e-6 * PROMPT  # API and tokenisation


def test_host_memory_is_read_as_fast_as_on_an_h200_unless_the_publications_set_up_is_added() -> None:
    """docs/findings/gpu.md: with 6,000 tokens of Llama-3.1-8B, the TTFT was 49 ms if read back and 35 ms if held."""
    assert load_s(DRAM, LLAMA, 6_000) == pytest.approx(0.014, rel=0.15)
    assert load_s(DRAM_FITTED, LLAMA, 6_000) > 10 * 0.014


def warm_s(device: TierDevice, cached: int) -> float:
    return BEFORE_S + prefill_s(LAW, device, LLAMA, PROMPT - cached, cached, floor_s=LAYER_PASS_S)


def test_every_number_of_the_table_has_a_source() -> None:
    for device in DEVICES.values():
        told = {name for of, name in SOURCES if of == device.name}
        given = {
            field.name
            for field in fields(TierDevice)
            if field.name not in ("name", "endurance", "medium") and getattr(device, field.name) != field.default
        }
        assert told == given, device.name


def test_a_prefix_has_two_objects_per_block_and_layer_one_for_k_and_one_for_v() -> None:
    qwen = layout_of(profile("h100_sxm", "Qwen3-32B", 2))
    assert qwen.objects(PROMPT) == 262_144
    assert qwen.bytes(PROMPT) == PROMPT * 262_144 / 2


@pytest.mark.parametrize(
    ("device", "gb_per_s"),
    [(DRAM, 50.0), (DRAM_FITTED, 36.0), (SSD, 3.4), (SSD_GDS, 9.32), (SSD_TUTTI, 25.9), (REMOTE, 9.68)],
)
def test_the_law_has_the_rates_of_figure_9_at_128k(device: TierDevice, gb_per_s: float) -> None:
    assert effective_bytes_per_s(device, LLAMA, PROMPT) / 1e9 == pytest.approx(gb_per_s, rel=0.002)


def test_the_law_has_the_times_and_gains_of_figure_11() -> None:
    """The published times are 3.43 and 7.84 s at 112K of 128K (both fitted); Tutti is 5.8 and 61.4 % below GDS."""
    assert warm_s(SSD_TUTTI, 112 * K) == pytest.approx(3.43, rel=0.02)
    assert warm_s(SSD, 112 * K) == pytest.approx(7.84, rel=0.02)
    assert 1 - warm_s(SSD_TUTTI, 32 * K) / warm_s(SSD_GDS, 32 * K) == pytest.approx(0.058, abs=0.01)
    assert 1 - warm_s(SSD_TUTTI, PROMPT - 64) / warm_s(SSD_GDS, PROMPT - 64) == pytest.approx(0.614, abs=0.03)


def test_above_96k_dram_is_ahead_of_tutti_with_a_set_up_at_the_links_rate_but_not_with_a_lower_rate() -> None:
    """DRAM is published as 20.6 % ahead. The crossover of figure 13 is one number: a set-up at 50 GB/s, or a rate."""
    slower = replace(DRAM, read_bytes_per_s=19.4e9)
    ahead = {device: 1 - warm_s(device, 127 * K) / warm_s(SSD_TUTTI, 127 * K) for device in (DRAM_FITTED, slower)}
    assert ahead[slower] == pytest.approx(-0.269, abs=0.01)
    assert ahead[DRAM_FITTED] == pytest.approx(0.206, abs=0.03)
    for device in ahead:
        assert crossover(LAW, device, LLAMA, 32 * K, floor_s=LAYER_PASS_S) == pytest.approx(0.979, abs=0.003)


def test_the_bubble_of_dram_in_figure_2_follows_from_the_same_set_up() -> None:
    """The published value is 14.2 %."""
    io_s, compute_s = load_s(DRAM_FITTED, LLAMA, 48 * K), LAW.prefill_s(16 * K, 48 * K)
    assert io_s / (io_s + compute_s) == pytest.approx(0.142, rel=0.1)


def test_loading_and_computing_take_equally_long_where_figure_13_says() -> None:
    """The published 97.9 and 98.3 % are both fitted; the law alone gives 94.9 % at the link's 50 GB/s, and 86.9 %."""
    assert crossover(LAW, DRAM_FITTED, LLAMA, 32 * K, floor_s=LAYER_PASS_S) == pytest.approx(0.979, abs=0.003)
    assert crossover(LAW, SSD_TUTTI, LLAMA, 32 * K, floor_s=LAYER_PASS_S) == pytest.approx(0.983, abs=0.005)
    assert crossover(PLAIN, DRAM, LLAMA, 32 * K) == pytest.approx(0.949, abs=0.005)
    assert crossover(PLAIN, SSD_TUTTI, LLAMA, 32 * K) == pytest.approx(0.869, abs=0.005)


@pytest.mark.parametrize(
    ("device", "by_law", "by_fit"), [(DRAM, 0.5, 0.5), (SSD_TUTTI, 3.9, 3.7), (SSD_GDS, 21, 17.7), (SSD, 40, 25)]
)
def test_the_shortest_prefix_worth_loading(device: TierDevice, by_law: float, by_fit: float) -> None:
    """The values are thousands of tokens, by the law and with the attention that figure 11 needs."""
    for law, expected in ((PLAIN, by_law), (LAW, by_fit)):
        found = shortest_worth_loading(law, device, LLAMA)
        assert found is not None
        assert found / K == pytest.approx(expected, rel=0.05, abs=0.75)
        assert is_worth_loading(law, device, LLAMA, 1, found)
        assert not is_worth_loading(law, device, LLAMA, 1, found - 1)


def test_a_medium_slower_than_computing_is_never_used() -> None:
    assert shortest_worth_loading(PLAIN, replace(SSD, object_s=1.0), LLAMA) is None


def test_addresses_and_staging_take_gpu_memory_and_writes_wear_drives() -> None:
    pool = 60 * 2**30
    assert metadata_bytes("prp", pool) == 3.75 * 2**30
    assert metadata_bytes("sgl", pool) == 15 * 2**20
    assert metadata_bytes("none", pool) == 0
    glm = KvLayout(81_920, 40, 2)
    assert staging_tokens(SSD_GDS, glm, 8e9) / K == pytest.approx(424, rel=0.001)
    assert staging_tokens(DRAM, glm, 8e9) == float("inf")
    written = 1.5 * ((1 - 0.84) * 13_000 + 200) * 131_072
    assert drive_writes_per_day(written, 15.36e12) == pytest.approx(2.52, rel=0.01)


@settings(max_examples=50)
@given(st.floats(0, 10), st.floats(1e-6, 10), st.integers(1, 128))
def test_a_bubble_is_between_zero_and_the_load(io: float, compute: float, layers: int) -> None:
    bubble = bubble_s(io, compute, layers)
    assert 0 <= bubble <= io * (1 + 1e-9)
    assert pipeline_s(io, compute, layers) == pytest.approx(layer_by_layer_s(io, compute, layers))


def layer_by_layer_s(io: float, compute: float, layers: int) -> float:
    """Play the same pass event by event: a layer is computed once it is loaded and the previous layer is computed;
    layer l + 1 loads while layer l is computed.
    """
    loaded = io / layers
    computed = loaded + compute / layers
    for _ in range(1, layers):
        loaded = max(loaded, computed - compute / layers) + io / layers
        computed = max(loaded, computed) + compute / layers
    return computed


@settings(max_examples=50)
@given(st.sampled_from(sorted(DEVICES)), st.integers(1, 200_000), st.floats(1e-3, 10))
def test_loading_grows_with_the_prefix_and_is_hidden_only_by_layers(name: str, tokens: int, first: float) -> None:
    device = DEVICES[name]
    io = load_s(device, LLAMA, tokens)
    assert 0 < io <= load_s(device, LLAMA, tokens + 64)
    assert load_s(device, LLAMA, tokens, busy=True) >= io
    exposed = exposed_s(device, LLAMA.layers, io, first)
    assert exposed == io if device.mode != "layers" else 0 < exposed <= io * (1 + 1e-9)
    assert store_s(device, LLAMA, tokens) > 0


def test_an_empty_load_costs_nothing() -> None:
    assert load_s(SSD_GDS, LLAMA, 0) == 0
    assert exposed_s(SSD_TUTTI, 32, 0.0, 0.1, LAYER_PASS_S) == 0
