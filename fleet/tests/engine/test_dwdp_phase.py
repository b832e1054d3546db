"""DWDP against DEP: times of a layer, waiting, contention, planning."""

import math
from dataclasses import replace

import pytest

from fleet.engine.dwdp.clock import UNLIMITED
from fleet.engine.dwdp.contention import layer_ms, met
from fleet.engine.dwdp.machine import H100
from fleet.engine.dwdp.phase import Phase, Prompts, computing, dep_layer_ms, smallest_that_hides
from fleet.engine.dwdp.waiting import expected_max, waiting_ms
from fleet.systems.dwdp.published import gpt_oss_phase, r1_phase, roofline

R1 = r1_phase(Prompts.uniform(8192, 0.8))


READ_MS = R1.moe.expert_bytes / R1.gpu.memory_bytes_per_s * 1e3  # time to read one expert


def linked(phase: Phase, gb_per_s: float) -> Phase:
    return replace(phase, gpu=replace(phase.gpu, link_bytes_per_s=gb_per_s * 1e9))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 64])
def test_the_copies_at_a_source_are_shared_out_exactly(ranks: int) -> None:
    odds = met(ranks)
    assert sum(odds) == pytest.approx(1)
    assert sum(x * share for x, share in enumerate(odds)) == pytest.approx((ranks - 2) / (ranks - 1))


def test_whole_pulls_wait_for_half_of_each_concurrent_pull_and_slices_for_almost_none() -> None:
    assert layer_ms(0, 3, 4, sliced=False) == pytest.approx(3 * (1 + 2 / 3 / 2))
    assert layer_ms(0, 3, 4, sliced=True) == pytest.approx(3 + 1 / 9**2 / 2)
    assert layer_ms(0, 3, 2, sliced=False) == layer_ms(0, 3, 2, sliced=True) == pytest.approx(3)
    assert layer_ms(9, 3, 4, sliced=False) == pytest.approx(9)


def test_more_slices_in_flight_hide_more_others_and_one_hides_none() -> None:
    copies = [layer_ms(0, 3, 8, sliced=True, in_flight=count) for count in range(1, 8)]
    assert copies[0] == layer_ms(0, 3, 8, sliced=False)
    assert copies == sorted(copies, reverse=True)
    assert copies[-1] == pytest.approx(3)


def test_set_ups_of_slices_are_hidden_by_others_in_flight() -> None:
    moving_ms = 2**20 / (R1.gpu.link_bytes_per_s * R1.reached.link) * 1e3
    sliced = replace(R1, sliced=True, slice_bytes=2**20, setup_ms=moving_ms)
    assert replace(sliced, in_flight=1).copy_ms == pytest.approx(2 * R1.copy_ms)
    assert replace(sliced, in_flight=2).copy_ms == pytest.approx(R1.copy_ms)
    assert replace(sliced, in_flight=2, setup_ms=3 * moving_ms).copy_ms == pytest.approx(2 * R1.copy_ms)
    assert replace(sliced, sliced=False).copy_ms == R1.copy_ms


def test_larger_slices_wait_longer_and_a_single_slice_as_long_as_a_whole_pull() -> None:
    whole = R1.waiting_for_copies_ms(0.0)
    slices = [replace(R1, sliced=True, slice_bytes=share * R1.pull_bytes) for share in (0.001, 0.25, 0.5, 1.0, 2.0)]
    least, *waits, all_of_it, more = (one.waiting_for_copies_ms(0.0) for one in slices)
    assert R1.copy_ms < least < waits[0] < waits[1] < all_of_it
    assert (all_of_it, more) == pytest.approx((whole, whole))


def test_an_all_gather_takes_cores_and_waits_for_the_slowest() -> None:
    """Even with no cores, an all-gather is worse than hidden copies; under small iterations both wait for the link."""
    assert R1.gathered_ms(0.0) > R1.dwdp_ms
    assert R1.gathered_ms(0.15) - R1.gathered_ms(0.0) == pytest.approx(R1.dwdp_computing.total * (1 / 0.85 - 1))
    small = replace(R1, max_tokens=1024)
    assert small.gathered_ms(0.15) > small.copy_ms


def test_chunks_narrow_the_window_until_the_copy_is_exposed() -> None:
    exposed = [R1.chunked(tokens).exposed_ms for tokens in (32_768, 8_192, 2_048)]
    assert exposed == sorted(exposed)
    assert exposed[-1] > 5
    assert R1.chunked(2_048).gain < 0.5 < 1 < R1.chunked(32_768).gain


@pytest.mark.parametrize(("ranks", "maximum"), [(1, 0), (2, 1 / math.sqrt(math.pi)), (4, 1.0294), (16, 1.766)])
def test_the_slowest_gpu_of_a_group_determines_its_time(ranks: int, maximum: float) -> None:
    assert expected_max(ranks) == pytest.approx(maximum, abs=5e-4)
    assert waiting_ms(ranks, 100, 0.2, 15) == pytest.approx(25 * maximum, abs=0.02)


def test_bandwidth_is_one_way_and_times_are_ms() -> None:
    copied = R1.layout.remote * R1.moe.expert_bytes
    assert R1.copy_ms == pytest.approx(copied / (0.7145 * 900e9) * 1e3, rel=1e-3)
    assert linked(R1, 450).copy_ms == pytest.approx(2 * R1.copy_ms)
    assert H100.link_bytes_per_s == 450e9


def test_the_window_grows_with_the_tokens_of_an_iteration() -> None:
    """A fixed window must not be used."""
    ratios = [replace(R1, max_tokens=tokens).ratio for tokens in (1024, 8192, 16_384, 32_768)]
    assert ratios == sorted(ratios)
    assert ratios[-1] > 8 * ratios[0] / 3


def test_the_smallest_iteration_that_hides_the_copy_is_a_border() -> None:
    for phase in (R1, replace(R1, sliced=True), linked(R1, 300)):
        smallest = smallest_that_hides(phase)
        assert smallest is not None
        assert replace(phase, max_tokens=smallest).is_hidden
        assert not replace(phase, max_tokens=smallest - 1).is_hidden
    assert smallest_that_hides(linked(R1, 0.01)) is None


def test_a_slow_link_exposes_the_copy_and_dep_wins() -> None:
    roce = linked(R1, 50)
    assert R1.is_hidden
    assert R1.gain > 1
    assert not roce.is_hidden
    assert roce.dwdp_ms == pytest.approx(roce.window_ms + roce.exposed_ms)
    assert roce.gain < 0.5


def test_decode_never_hides_the_copy() -> None:
    decode = replace(R1, max_tokens=32, filled=1.0)
    assert decode.dwdp_computing.experts == pytest.approx(257 * decode.moe.expert_bytes / 8e12 * 1e3)
    assert decode.exposed_ms > 5 * decode.window_ms / 3


def test_a_memory_bound_layer_of_dep_reads_64_experts_and_the_shared_one() -> None:
    small = replace(R1, max_tokens=32, filled=1.0, prompts=Prompts(32))
    assert small.dep_computing.experts == pytest.approx(small.dwdp_computing.experts * 65 / 257)
    assert small.dep_computing.experts == pytest.approx(65 * READ_MS)
    assert small.dep_computing.routed == pytest.approx(64 * READ_MS)


def test_a_step_of_dep_reads_as_many_experts_as_the_closed_form() -> None:
    own, idle = [(32.0, 0.0)] * 4, [0.0] * 4
    reached = replace(R1.reached, power=UNLIMITED)
    without = replace(R1.moe, bytes_per_weight=0.0)
    read, unread = (dep_layer_ms(moe, R1.gpu, reached, own, idle) for moe in (R1.moe, without))
    parts = computing(without, R1.gpu, reached, 32.0, 0.0, 64)
    assert read - unread == pytest.approx(65 * READ_MS - parts.experts)


def test_the_shared_expert_is_computed_where_the_others_are_only_read() -> None:
    """Each is a separate matrix product; figure 3's smallest prompt lies between the two limits."""
    parts = roofline(1024).dep_computing
    assert parts.reads == (True, False, False)
    assert parts.routed == pytest.approx(64 * READ_MS)
    assert READ_MS < parts.shared < 8 * READ_MS


@pytest.mark.parametrize(
    ("experts", "tokens", "read"), [(256, 1.0, (True, True)), (8, 200.0, (False, True)), (256, 500.0, (True, False))]
)
def test_a_faster_clock_shortens_the_arithmetic_of_a_layer_of_dep_but_no_read(
    experts: int, tokens: float, read: tuple[bool, bool]
) -> None:
    moe, power = replace(R1.moe, experts=experts, shared=0), R1.reached.power
    own = [(tokens, tokens**2 / 2)] * 4
    layer, unlimited = (
        dep_layer_ms(moe, R1.gpu, replace(R1.reached, power=each), own, [0.0] * 4) for each in (power, UNLIMITED)
    )
    part = computing(moe, R1.gpu, R1.reached, *own[0], experts / 4)
    assert (part.reads[0], part.reads[2]) == read
    assert layer - unlimited == pytest.approx(power.slowed_beside(part.arithmetic, unlimited - part.arithmetic))


def test_uneven_prompts_cost_only_dep() -> None:
    even, uneven = r1_phase(Prompts(16_384)), r1_phase(Prompts(16_384, 0.25))
    assert uneven.wait_ms > even.wait_ms > 0
    assert uneven.gain > even.gain


def test_another_model_on_another_gpu_is_computed() -> None:
    phase = gpt_oss_phase(Prompts(8192))
    assert phase.moe.expert_bytes == pytest.approx(13.2e6, rel=0.01)
    assert phase.is_hidden


def test_a_merged_buffer_reads_and_writes_every_expert_once_more() -> None:
    phase = r1_phase(Prompts.uniform(8192, 0.8))
    merged = replace(phase, merged=True)
    assert merged.merging_ms == pytest.approx(2 * 256 * phase.moe.expert_bytes / phase.gpu.memory_bytes_per_s * 1e3)
    cooling = 1 - phase.reached.power.waiting  # a GPU that reads draws less, and computes faster afterwards
    assert merged.dwdp_ms - phase.dwdp_ms == pytest.approx((1 - cooling) * merged.merging_ms, rel=0.05)
    assert merged.gain < phase.gain
    assert merged.dep_ms == phase.dep_ms


def test_a_large_iteration_uses_every_copied_expert_and_a_decode_step_few() -> None:
    phase = r1_phase(Prompts.uniform(8192, 0.8))
    assert phase.unused_share < 1e-9
    assert replace(phase, max_tokens=1, filled=1.0).unused_share == pytest.approx(1 - 8 / 256)
