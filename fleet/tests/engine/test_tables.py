"""Profiles by measured tables, and the catalogue of them that ships with the product."""

from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest

from fleet.engine.law import ASYNC_HOST_S, TabledLaw, law_of
from fleet.engine.profiles import UnknownProfile, kv_blocks, model_names, profile, profile_by, read
from fleet.engine.tables import EXPECTED, catalogue

GPT = profile("h100_sxm", "gpt-oss-120b", 2)
TEXT = msgspec.json.encode(GPT.tables).decode()


def test_every_profile_of_the_catalogue_fits_and_has_a_law_that_grows() -> None:
    for (gpu, name, tp, dp, ep), tables in catalogue().items():
        made = profile(gpu, name, tp, dp=dp, expert_parallel=ep > 1)
        assert made.tables is tables, (gpu, name)
        law = law_of(made)
        assert isinstance(law, TabledLaw)
        assert kv_blocks(made, 1) >= 16_384
        assert law.step_s(1, 0.0, 100, 1) < law.step_s(256, 0.0, 2_560_000, 256) < 3
        assert law.prefill_s(1_000) < law.prefill_s(8_000) < law.prefill_s(32_000)
        assert tables.grid_error < 0.04
        assert 0 < tables.measured <= 1
        assert tables.family in EXPECTED


def test_dense_models_and_mixtures_of_experts_are_known_on_three_generations() -> None:
    known = {(gpu, one.family) for (gpu, *_), one in catalogue().items()}
    assert known >= {(gpu, family) for gpu in ("h100_sxm", "h200_sxm", "b200_sxm") for family in ("dense", "moe")}
    assert {"gpt-oss-120b", "MiniMax-M2.5", "Qwen3-32B-FP8"} <= set(model_names())


def test_steps_with_decodes_alone_and_steps_with_a_prompt_have_separate_tables() -> None:
    law, tables = law_of(GPT), GPT.tables
    assert tables is not None
    assert isinstance(law, TabledLaw)
    rest_s = law.fixed_s + law.decode_s * 8 + law.kv_s_per_token * 8_000
    decode_ms = dict(zip(*tables.decode, strict=True))
    assert law.step_s(8, 0.0, 8_000, 8) - rest_s == pytest.approx(decode_ms[8] / 1e3)
    tokens, times = tables.prefill
    for (left, low), (right, high) in pairwise(zip(tokens, times, strict=True)):
        between = law.linear_s((left + right) // 2)
        assert min(low, high) <= between * 1e3 <= max(low, high)
    assert law.linear_s(2 * tokens[-1]) > 1.5 * law.linear_s(tokens[-1])


def test_host_times_used_with_tables_depend_on_the_engines_version() -> None:
    before, since = (law_of(profile("h100_sxm", "gpt-oss-120b", 2, (0, minor))) for minor in (13, 14))
    assert before.fixed_s > ASYNC_HOST_S > since.fixed_s
    assert before.decode_s > since.decode_s


def test_fits_take_precedence_over_tables_and_tables_over_transfers() -> None:
    assert profile("h100_sxm", "Qwen3-32B", 2).tables is None
    assert profile("h100_sxm", "Qwen3-30B-A3B", 1).tables is not None
    assert profile("h20_sxm", "Qwen3-30B-A3B", 1).tables is None


def test_ranks_of_a_dense_model_have_the_profile_of_a_single_instance() -> None:
    dense = profile("h100_sxm", "Llama-3.1-70B-Instruct-FP8", 2, dp=8)
    assert dense == profile("h100_sxm", "Llama-3.1-70B-Instruct-FP8", 2)
    shared = profile("h100_sxm", "gpt-oss-120b", 1, dp=4, expert_parallel=True)
    assert shared.tables is not None
    assert (shared.tables.dp, shared.tables.ep) == (4, 4)


@pytest.mark.parametrize(
    ("asked", "options", "why"),
    [
        (("h100_sxm", "gpt-oss-120b", 4), {"dp": 3}, r"gpt-oss-120b on h100_sxm, tp 4, dp 3; known here: tp 1; tp 2"),
        (("l40s", "gpt-oss-120b", 1), {}, "known on: h100_sxm, h200_sxm"),
        (("h100_sxm", "Qwen3-32B", 2), {"expert_parallel": True}, "experts dealt among the GPUs"),
        (("l40s", "Qwen3-4B", 1), {}, "known on: no GPU; make a profile of it with weir profile"),
    ],
)
def test_a_layout_without_tables_is_refused_with_the_known_ones(
    asked: tuple[str, str, int], options: dict[str, int], why: str
) -> None:
    with pytest.raises(UnknownProfile, match=why):
        profile(*asked, **options)  # type: ignore[arg-type]


def test_a_made_profile_is_read_from_its_json() -> None:
    assert replace(profile_by(read(TEXT)), version=GPT.version) == GPT


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (("{", "["), "not a profile as weir profile --json prints it"),
        (('"tp":2', '"tp":0'), r"Expected `int` >= 1.*\$.tp"),
        (('"prefill":[[1,', '"prefill":[[9999999,'), "growing token counts"),
        (('"h100_sxm"', '"h999"'), "no peaks of h999"),
        (('"weight_bytes":', '"weight_bytes":9e14,"was":'), "unknown field"),
    ],
)
def test_a_broken_profile_is_refused_with_the_reason(changed: tuple[str, str], why: str) -> None:
    with pytest.raises(UnknownProfile, match=why):
        profile_by(read(TEXT.replace(*changed, 1)))
