"""The step-time law: its constants, and its shape."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.engine.law import chunk_pairs, law_of
from fleet.engine.profiles import FITS, MODELS, PEAKS, UnknownProfile, kv_blocks, profile

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is absent: it holds the measurements")


@needs_data
def test_the_constants_are_those_of_the_calibration_file() -> None:
    fitted = json.loads((DATA / "step_time_calibration.json").read_text())
    assert set(FITS) - {(gpu, model, int(tp[2:])) for gpu, model, tp in (key.split("|") for key in fitted)} == {
        ("h20_sxm", "Qwen3-30B-A3B", 1)
    }
    for key, row in fitted.items():
        gpu, model, tp = key.split("|")
        of = profile(gpu, model, int(tp[2:]))
        assert (of.fit.t0_ms, of.fit.gemm, of.fit.prefill_attention) == (
            row["t0_ms"],
            row["eff_gemm"],
            row["eff_prefill_attn"],
        )
        assert (of.fit.weight_bandwidth, of.fit.kv_bandwidth) == (row["eff_weight_bw"], row["eff_kv_bw"])
        assert of.fit.allreduce_us_per_token == row["allreduce_us_per_token"]
        assert of.fit.allreduce_ms_per_step == row["allreduce_small_ms_per_step"]
        assert (of.peak.flops, of.peak.bandwidth) == (row["peak_flops"], row["peak_bw"])
        assert of.sizes.params == row["params"]
        assert of.sizes.weight_bytes / of.tp == row["weight_bytes_per_gpu"]
        assert of.sizes.kv_bytes_per_token / of.tp == row["kv_bytes_per_token_per_gpu"]
        assert (of.sizes.layers, of.sizes.q_heads, of.sizes.head_dim) == (
            row["layers"],
            row["q_heads"],
            row["head_dim"],
        )


KV = [*csv.DictReader((Path(__file__).parents[3] / "docs/findings/tables/kv.csv").read_text().splitlines())]


@pytest.mark.parametrize("row", KV, ids=lambda row: f"{row['model']}-{row['GPUs']}-{row['vLLM']}")
def test_a_gpu_holds_the_kv_that_vllm_reports(row: dict[str, str]) -> None:
    major, minor = row["vLLM"].split(".")
    of = profile(row["GPU"], row["model"], int(row["GPUs"]), (int(major), int(minor)))
    blocks = kv_blocks(of, used=float(row["share of memory"]), sequences=int(row["sequences"]))
    gib = blocks * 16 * of.sizes.kv_bytes_per_token / of.tp / 2**30
    assert gib == pytest.approx(float(row["computed"]), abs=0.006)
    assert gib == pytest.approx(float(row["GiB for KV"]), rel=0.005)


def test_more_sequences_logits_and_tokens_in_a_step_leave_less_kv() -> None:
    of = profile("h100_sxm", "Qwen3-32B", 2, (0, 12))
    assert kv_blocks(of, sequences=1024) * 16 == pytest.approx(282_000, rel=0.002)
    assert kv_blocks(of) > kv_blocks(of, sequences=512) > kv_blocks(of, sequences=1024)
    assert kv_blocks(of, step_tokens=64, sequences=1024) > kv_blocks(of) > kv_blocks(of, step_tokens=65_536)
    assert kv_blocks(of) > kv_blocks(profile("h100_sxm", "Qwen3-32B", 2, (0, 18)))


@pytest.mark.parametrize("key", sorted(FITS))
def test_every_profile_has_its_sizes_and_some_memory_for_kv(key: tuple[str, str, int]) -> None:
    gpu, model, tp = key
    assert gpu in PEAKS
    assert model in MODELS
    assert kv_blocks(profile(gpu, model, tp)) > 1000


def test_names_are_found_in_any_case_and_the_smallest_size_is_the_default() -> None:
    assert profile("H100_SXM", "qwen3-32b").tp == 1
    assert profile("h100_sxm", "llama-3.3-70b").tp == 4


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownProfile, match=r"no constants for a100 Llama-3.1-8B tp1; there are: .*Qwen3-8B.*; tp 1"):
        profile("a100", "Llama-3.1-8B", 1)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (("h100_sxm", "Llama-3.3-70B", 1), "Llama-3.3-70B with 16,384 tokens of KV does not fit on 1 h100_sxm"),
        (("h20_sxm", "Qwen3-30B-A3B", 2), "no constants for reductions on h20_sxm"),
        (("h100_sxm", "Qwen3-32B", 3), "tp3"),
    ],
)
def test_profiles_that_are_unknown_or_cannot_run_are_refused(asked: tuple[str, str, int], why: str) -> None:
    with pytest.raises(UnknownProfile, match=why):
        profile(*asked)


@pytest.mark.parametrize(
    ("asked", "tp", "donor"),
    [
        (("h100_sxm", "Qwen3-32B", 8), 8, "Qwen3-32B tp4"),  # the same model first
        (("h100_sxm", "Llama-3.1-8B", 2), 2, "Qwen3-32B tp2"),  # the model was fitted on one GPU only: no reductions
        (("h100_sxm", "Qwen2.5-72B", None), 4, "Llama-3.3-70B tp4"),  # the nearest in size
        (("h200_sxm", "Qwen3-4B", None), 1, "Qwen3-8B tp1"),
    ],
)
def test_hardware_without_a_fit_takes_the_efficiencies_of_the_nearest_fit(
    asked: tuple[str, str, int | None], tp: int, donor: str
) -> None:
    made = profile(*asked)
    assert (made.tp, made.transferred) == (tp, donor)


def test_a_transferred_profile_scales_with_layers_and_activations() -> None:
    made, donor = profile("h100_sxm", "Qwen2.5-72B", 4), profile("h100_sxm", "Llama-3.3-70B", 4)
    assert donor.transferred == ""
    assert made.fit.gemm == donor.fit.gemm
    assert made.fit.t0_ms == pytest.approx(0.043 * 80)
    assert made.fit.allreduce_us_per_token == donor.fit.allreduce_us_per_token  # the same width and number of layers
    small = profile("h100_sxm", "Qwen3-4B", 2).fit.allreduce_us_per_token
    assert small == pytest.approx(5.361 * (36 * 2560) / (64 * 5120))


def test_eight_gpus_have_the_efficiencies_of_four_and_their_own_kv() -> None:
    four, eight = (profile("h100_sxm", "Llama-3.3-70B", tp) for tp in (4, 8))
    assert eight.fit == four.fit
    assert law_of(eight).weights_s == pytest.approx(law_of(four).weights_s / 2)
    assert kv_blocks(eight) > 2 * kv_blocks(four)


def test_a_small_step_costs_the_weights_and_a_large_one_the_arithmetic() -> None:
    law = law_of(profile())
    assert law.linear_s(1) == pytest.approx(law.weights_s, rel=1e-3)
    assert law.linear_s(100_000) == pytest.approx(100_000 * law.compute_s_per_token, rel=1e-3)


def test_each_decoding_sequence_costs_time_in_each_layer() -> None:
    law = law_of(profile())
    assert law.step_s(8, 0.0, 800, 8) - law.step_s(8, 0.0, 800, 0) == pytest.approx(8 * 32 * 0.4e-6)


def test_a_step_waits_less_for_the_host_when_it_is_planned_ahead() -> None:
    """vLLM plans ahead by default since 0.14."""
    for gpus, more_s in ((2, 0.56e-3), (4, 0.84e-3)):
        before, since = (law_of(profile("h100_sxm", "Qwen3-32B", gpus, (0, minor))).fixed_s for minor in (13, 14))
        assert before - since == pytest.approx(more_s), "each doubling of the worker processes costs time"


def test_a_step_with_prompts_cannot_use_the_graphs_that_speed_up_reductions() -> None:
    plain, reduced, ahead = (law_of(profile("h100_sxm", "Qwen3-32B", *by)) for by in ((1, (0, 13)), (2, (0, 13)), (2,)))
    assert plain.prompts_s == ahead.prompts_s == 0
    assert reduced.prompts_s == pytest.approx(64 * 93e-6)
    without = replace(reduced, prompts_s=0.0)
    assert reduced.step_s(8, 32.0, 0, 0) - without.step_s(8, 32.0, 0, 0) == pytest.approx(reduced.prompts_s)
    assert reduced.step_s(8, 0.0, 800, 8) == without.step_s(8, 0.0, 800, 8)


def test_reductions_cost_time_even_in_a_step_of_few_tokens() -> None:
    with_floor = profile("h100_sxm", "Qwen3-32B", 2)
    without = replace(with_floor, fit=replace(with_floor.fit, allreduce_ms_per_step=0.0))
    assert law_of(with_floor).fixed_s - law_of(without).fixed_s == pytest.approx(0.564e-3)


def test_cached_tokens_make_a_prefill_shorter_but_not_free() -> None:
    law = law_of(profile())
    assert law.prefill_s(1_000) < law.prefill_s(1_000, cached_tokens=15_000) < law.prefill_s(16_000)


def test_chunks_of_a_prompt_do_the_attention_work_of_the_whole() -> None:
    parts = sum(chunk_pairs(n, before) for n, before in [(8192, 0), (8192, 8192), (1616, 16_384)])
    assert parts == pytest.approx(chunk_pairs(18_000, 0))


def test_the_tensor_parallel_size_splits_the_work_and_adds_a_reduction() -> None:
    one, two = law_of(profile("h100_sxm", "Qwen3-32B", 1)), law_of(profile("h100_sxm", "Qwen3-32B", 2))
    assert two.weights_s == pytest.approx(one.weights_s / 2, rel=0.01)
    assert 0 < one.allreduce_s_per_token < two.allreduce_s_per_token


def test_kernels_between_products_pass_over_the_activations_of_each_token() -> None:
    """Without these kernels, prompts were 7 to 12 % too fast. For Llama-3.1-8B, per layer and token: two norms move 8
    times the hidden state, a gate three times its inner one, the rotation queries and keys twice, the cache keys and
    values twice.
    """
    values = 2 * 8 * 4096 / 2 + 3 * 14_336 + 2 * (32 + 8) * 128 + 2 * 2 * 8 * 128
    law = law_of(profile("h200_sxm", "Llama-3.1-8B", 1))
    assert law.allreduce_s_per_token == pytest.approx(32 * 2 * values / (0.8 * 4.8e12))
    assert 0.07 < law.allreduce_s_per_token / law.compute_s_per_token < 0.09


def test_a_step_reads_the_experts_to_which_its_tokens_are_routed() -> None:
    """One token is routed to 8 of 128 experts, a hundred tokens to nearly all of them."""
    law = law_of(profile("h20_sxm", "Qwen3-30B-A3B"))
    dense, all_read_s = law.weights_s, law.weights_s + law.experts_s
    assert law.linear_s(1) == pytest.approx(dense + law.experts_s / 16, rel=1e-3)
    assert 0.95 * all_read_s < law.linear_s(100) < 1.1 * all_read_s
    assert all_read_s == pytest.approx(60.44e9 / (4e12 * 0.92), rel=1e-3)


def test_a_mixture_of_experts_computes_with_its_active_weights() -> None:
    law = law_of(profile("h20_sxm", "Qwen3-30B-A3B"))
    assert law.linear_s(100_000) == pytest.approx(100_000 * 2 * 2.73e9 / (148e12 * 0.83), rel=1e-3)
